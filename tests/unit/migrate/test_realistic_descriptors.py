"""Whole descriptors as servers of today have them: namespaces, JMS 2.0 properties, much that isn't JMS."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.migrate.descriptor import Descriptor, read_descriptor, spec_of

FOLDER = Path(__file__).with_name("descriptors")


def read(*names: str) -> Descriptor:
    return read_descriptor(*((FOLDER / name).read_bytes() for name in names), titles=names)


def test_a_bean_of_weblogic_12_with_its_module_w13_w14() -> None:
    found = read("ejb-jar.xml", "weblogic-ejb-jar.xml", "shop-jms.xml")

    assert spec_of(found, "OrderBean") == ActivationSpec(
        ejb_name="OrderBean",
        ejb_class="com.example.OrderBean",
        messaging_type="javax.jms.MessageListener",
        transaction_type="container",
        transaction_attribute="required",
        acknowledge_mode="auto_acknowledge",
        destination_type="queue",
        destination="lookup://jms/shop/OrderQueue",
        message_selector="region = 'EU' AND amount > 0",
        endpoint_pool_max_size=16,
        endpoint_pool_steady_size=4,
        pool_idle_timeout=600,
        initial_context_factory="weblogic.jndi.WLInitialContextFactory",
        jms_conn_id="jms/shop/ShopXACF",
        polling_interval=10,
        max_messages_in_transaction=20,
        transaction_timeout=300,
        dispatch_policy="OrderWorkManager",
        redelivery_handling="1:2000; 6:move(queue:OrderErrors)",
    )
    concurrency = (
        "concurrency_mode: not set; messages are handled one at a time, while "
        "WebLogic may handle up to 16 at once, as sync does (a session for each); messages are then "
        "out of order"
    )
    assert found.notes["OrderBean"] == (
        "provider-url: dropped, t3 is not a supported transport; the Airflow connection names the broker",
        "jms_conn_id: jms/shop/ShopXACF is a JNDI name; replace it by the id of your Airflow connection",
        WAITING,
        (
            "use_store: set it before the first run. Messages that waited in the stopped bean may come "
            "with the redelivered flag; without a store that counts as a failure, to which 1:2000 applies"
        ),
        concurrency,
        ROLES,
    )
    assert found.destinations == {
        "jms/shop/OrderQueue": "queue://OrderQueue",
        "jms/shop/OrderErrors": "queue://OrderErrors",
        "jms/shop/PriceTopic": "topic://PriceTopic",
    }
    assert found.connection_factories == {"jms/shop/PriceCF": {"ClientId": "prices"}}


def test_what_is_not_jms_is_named_with_its_bean_and_without_its_values() -> None:
    dropped = read("ejb-jar.xml", "weblogic-ejb-jar.xml").dropped

    bean = "weblogic-ejb-jar > weblogic-enterprise-bean 'OrderBean'"
    for path in (
        (
            f"{bean} > resource-description 'jdbc/ShopDS': "
            "the function opens what it needs, by an Airflow connection"
        ),
        f"{bean} > resource-env-description 'jms/ReplyQueue'",
        f"{bean} > ejb-reference-description 'ejb/Stock'",
        f"{bean} > message-driven-descriptor > security-plugin",
        f"{bean} > remote-client-timeout",
        f"{bean} > jndi-binding",
        "ejb-jar > enterprise-beans > session 'Stock'",
    ):
        assert path in dropped
    assert "plugin-secret" not in str(dropped)


def test_what_takes_the_place_of_an_element_follows_its_path() -> None:
    dropped = read("shop-jms.xml").dropped

    factory = "weblogic-jms > connection-factory 'ShopXACF' > transaction-params"
    assert f"{factory}: there is no XA; a transaction covers the broker alone" in str(dropped)
    failure = "weblogic-jms > uniform-distributed-queue 'OrderQueue' > delivery-failure-params"
    assert f"{failure} > expiration-policy: set an expiry queue at the new broker" in dropped


def test_properties_of_jms_2_and_of_weblogic_are_options_w17_w30() -> None:
    found = read("ejb-jar.xml", "weblogic-ejb-jar.xml")
    spec = spec_of(found, "PriceBean")

    assert spec.destination == ("lookup://jms/shop/PriceTopic",)
    assert spec.destination_type == "topic"
    assert spec.jms_conn_id == "jms/shop/PriceCF"
    assert (spec.durable_name, spec.client_id) == ("PriceBean", "price-feed")
    assert spec.distributed_destination_connection == "every_member"
    assert any("so the subscription is a new one" in note for note in found.notes["PriceBean"])
    assert not any("so the subscription is a new one" in note for note in found.notes["OrderBean"])
    assert spec.polling_interval == timedelta(seconds=30)
    assert spec.transacted, "from EJB 3 on a bean that says nothing is transactional"
    assert any("minimizeAQSessions" in path for path in found.dropped)


def test_a_property_nobody_knows_is_refused_by_name_where_it_would_be_lost() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ActivationSpec.from_xml((FOLDER / "ejb-jar.xml").read_bytes(), name="PriceBean")
    assert str(caught.value) == "activation 'PriceBean': minimizeAQSessions: unknown option"


def test_a_fault_names_its_bean() -> None:
    text = (FOLDER / "ejb-jar.xml").read_text(encoding="utf-8").replace(">Auto-acknowledge<", ">Client<")
    with pytest.raises(ConfigurationError, match=r"^activation 'OrderBean': acknowledgeMode: got 'Client'"):
        ActivationSpec.from_xml(text, name="OrderBean")


ROLES = (
    "run_as_principal: accepted, no effect: the handler runs as Airflow's worker; "
    "username and password log in to the broker"
)
WAITING = (
    "redelivery delay: a delayed message occupies a handler here, and in serial mode it holds up all "
    "others; on WebLogic it waits in the server. Above 5 s, non_blocking_redelivery and use_store avoid this"
)
NO_LIMIT = (
    "these files give queue://OrderQueue no redelivery limit. Unless its producers set one, a message that "
    "always fails is redelivered for ever; end redelivery_handling with 6:move(queue:OrderQueue.dlq)"
)
_ERRORS = '<queue name="OrderErrors">'
_DELAY = "<delivery-params-overrides><redelivery-delay>7</redelivery-delay></delivery-params-overrides>"
_DROPS = "WebLogic drops a message of queue://OrderQueue after 5 redeliveries, here it stays; end it with "


@pytest.mark.parametrize(
    ("before", "after", "handling", "note"),
    [
        ("<redelivery-limit>5<", "<redelivery-limit>0<", "1:move(queue:OrderErrors)", ""),
        (
            "<redelivery-limit>5<",
            "<redelivery-limit>-1<",
            "1:2000",
            NO_LIMIT,
        ),
        ("<load-balancing-policy>", f"{_DELAY}<load-balancing-policy>", "1:7; 6:move(queue:OrderErrors)", ""),
        (_ERRORS, '<queue name="Other">', "1:2000; 6:move(queue:OrderErrors)", "isn't in these files"),
        ("OrderErrors", "Order$Errors", "1:2000", "6:move(queue:lookup://NAME)"),
        (">OrderErrors</error", "></error", "1:2000", f"{_DROPS}6:delete, or 6:move(queue:OrderQueue.dlq)"),
    ],
)
def test_what_a_module_says_of_failed_messages(before: str, after: str, handling: str, note: str) -> None:
    module = (FOLDER / "shop-jms.xml").read_text(encoding="utf-8")
    assert before in module
    found = read_descriptor((FOLDER / "weblogic-ejb-jar.xml").read_bytes(), module.replace(before, after))

    assert spec_of(found, "OrderBean").redelivery_handling == handling
    said = [each for each in found.notes["OrderBean"] if each.startswith("redelivery_handling")]
    assert len(said) == bool(note)
    assert note in "".join(said)
    assert (WAITING in found.notes["OrderBean"]) == (":move" not in handling.partition(";")[0])


def test_without_a_module_the_redelivery_is_said_to_be_missing() -> None:
    found = read("weblogic-ejb-jar.xml")
    assert "redelivery_handling" not in str(found.activations)
    assert any("import its *-jms.xml too" in each for each in found.notes["OrderBean"])


def test_a_bean_that_says_its_redelivery_keeps_it() -> None:
    text = (FOLDER / "ejb-jar.xml").read_text(encoding="utf-8")
    text = text.replace(">acknowledgeMode<", ">RedeliveryHandling<").replace(">Auto-acknowledge<", ">3:5<")
    module = (FOLDER / "shop-jms.xml").read_bytes()
    found = read_descriptor(text, (FOLDER / "weblogic-ejb-jar.xml").read_bytes(), module)
    assert spec_of(found, "OrderBean").redelivery_handling == "3:5"


def test_a_queue_that_a_bean_only_sends_to_is_not_consumed_w19() -> None:
    text = (FOLDER / "ejb-jar.xml").read_text(encoding="utf-8").replace("destinationLookup", "useJNDI")
    found = read_descriptor(text, (FOLDER / "weblogic-ejb-jar.xml").read_bytes())
    assert spec_of(found, "OrderBean").destination == ("lookup://jms/shop/OrderQueue",)


def test_where_two_descriptors_differ_the_servers_own_holds_and_the_other_is_named() -> None:
    text = (FOLDER / "ejb-jar.xml").read_text(encoding="utf-8")
    text = text.replace(">jms/shop/OrderQueue<", ">java:app/orders<")
    found = read_descriptor(text, (FOLDER / "weblogic-ejb-jar.xml").read_bytes())
    assert spec_of(found, "OrderBean").destination == ("lookup://jms/shop/OrderQueue",)
    assert found.notes["OrderBean"][0] == (
        "destination: using jms/shop/OrderQueue of destination-jndi-name, not java:app/orders of "
        "destinationLookup"
    )


def test_a_link_leads_to_the_name_that_weblogic_gives_it_w19() -> None:
    bean = (
        "<ejb-jar version='2.1'><message-driven><ejb-name>B</ejb-name>"
        "<message-destination-link>Orders</message-destination-link></message-driven></ejb-jar>"
    )
    links = (
        "<weblogic-ejb-jar><message-destination-descriptor>"
        "<message-destination-name>Orders</message-destination-name>"
        "<destination-jndi-name>jms/shop/OrderQueue</destination-jndi-name>"
        "</message-destination-descriptor></weblogic-ejb-jar>"
    )
    assert ActivationSpec.from_xml(bean, links).destination == ("lookup://jms/shop/OrderQueue",)


def test_the_adapter_of_java_caps_j31() -> None:
    found = read("ra.xml")
    assert spec_of(found) == ActivationSpec(
        destination="Queue1", destination_type="queue", concurrency_mode="sync", endpoint_pool_max_size=8
    )
    assert found.connector["ConnectionURL"] == "stcms://jms.example.com:18007"
    assert "move(queue:dlq$error)" in found.connector["Options"]
    assert found.connection_factories == {"javax.jms.QueueConnectionFactory": {"ProducerPooling": "true"}}
    assert "adapter-secret" not in str(found.dropped)


def test_the_beans_of_glassfish_have_their_properties_in_a_file_of_its_own() -> None:
    ejb_jar = "<ejb-jar version='2.1'><message-driven><ejb-name>B</ejb-name></message-driven></ejb-jar>"
    sun = (
        "<sun-ejb-jar><enterprise-beans><ejb><ejb-name>B</ejb-name><mdb-resource-adapter>"
        "<resource-adapter-mid>sun-jms-adapter</resource-adapter-mid><activation-config>"
        "<activation-config-property><activation-config-property-name>Destination"
        "</activation-config-property-name><activation-config-property-value>queue://Queue1"
        "</activation-config-property-value></activation-config-property>"
        "</activation-config></mdb-resource-adapter></ejb></enterprise-beans></sun-ejb-jar>"
    )
    assert ActivationSpec.from_xml(ejb_jar, sun) == ActivationSpec(
        ejb_name="B", destination="queue://Queue1", resource_adapter="sun-jms-adapter"
    )


def test_a_connection_that_is_looked_up_in_jndi_is_named_without_its_secrets() -> None:
    url = "lookup://jms/tx?password=url-secret"
    text = (FOLDER / "ejb-jar.xml").read_text(encoding="utf-8")
    text = text.replace(">acknowledgeMode<", ">ConnectionURL<").replace(">Auto-acknowledge<", f">{url}<")
    (note,) = read_descriptor(text).notes["OrderBean"]
    assert note.startswith(
        "connection_url: lookup://jms/tx is a JNDI name; replace it by lookup:// and the id"
    )
    assert "url-secret" not in note


def test_what_the_connector_says_for_all_beans_is_not_said_to_be_missing() -> None:
    options = "JMSJCA.concurrencymode=sync\nJMSJCA.redeliveryhandling=3:5"
    adapter = (
        "<resourceadapter><config-property><config-property-name>Options</config-property-name>"
        f"<config-property-value>{options}</config-property-value></config-property></resourceadapter>"
    )
    weblogic, module = ((FOLDER / name).read_bytes() for name in ("weblogic-ejb-jar.xml", "shop-jms.xml"))
    found = read_descriptor(weblogic, module, adapter)
    said = [note.partition(":")[0] for note in found.notes["OrderBean"]]
    assert said == ["provider-url", "jms_conn_id", "run_as_principal"]
    assert "RedeliveryHandling" not in found.activations["OrderBean"]


def bean_on(jndi_name: str, *modules: str | bytes, factory: str = "") -> tuple[str | None, list[str]]:
    """Return the redelivery handling of a bean on this destination, and the notes about it."""
    bean = (
        "<weblogic-ejb-jar><weblogic-enterprise-bean><ejb-name>B</ejb-name><message-driven-descriptor>"
        f"<destination-jndi-name>{jndi_name}</destination-jndi-name>"
        + (f"<connection-factory-jndi-name>{factory}</connection-factory-jndi-name>" if factory else "")
        + "</message-driven-descriptor></weblogic-enterprise-bean></weblogic-ejb-jar>"
    )
    found = read_descriptor(bean, *modules)
    notes = [note.partition(": ")[2] for note in found.notes["B"] if note.startswith("redelivery_handling: ")]
    return found.activations["B"].get("RedeliveryHandling"), notes


_TEMPLATE = """<weblogic-jms>
  <template name="T">
    <delivery-params-overrides><redelivery-delay>300</redelivery-delay></delivery-params-overrides>
    <delivery-failure-params>
      <redelivery-limit>7</redelivery-limit>
      <error-destination>E</error-destination>
    </delivery-failure-params>
    <group-params sub-deployment-name="Left"><error-destination>EL</error-destination></group-params>
  </template>
  <queue name="E"/><topic name="EL"/>
  <queue name="Q"><template>T</template><jndi-name>q</jndi-name>{own}</queue>
</weblogic-jms>"""


@pytest.mark.parametrize(
    ("own", "handling"),
    [
        ("", "1:300; 8:move(queue:E)"),
        ("<sub-deployment-name>Left</sub-deployment-name>", "1:300; 8:move(topic:EL)"),
        (
            "<delivery-failure-params><error-destination>Own</error-destination></delivery-failure-params>",
            "1:300; 8:move(queue:Own)",
        ),
        (
            "<delivery-failure-params><redelivery-limit>1</redelivery-limit></delivery-failure-params>",
            "1:300; 2:move(queue:E)",
        ),
        (
            "<delivery-params-overrides><redelivery-delay>0</redelivery-delay></delivery-params-overrides>",
            "8:move(queue:E)",
        ),
        (
            "<delivery-failure-params><redelivery-limit>-1</redelivery-limit></delivery-failure-params>",
            "1:300",
        ),
    ],
)
def test_a_destination_takes_from_its_template_what_it_does_not_say(own: str, handling: str) -> None:
    assert bean_on("q", _TEMPLATE.format(own=own))[0] == handling


@pytest.mark.parametrize(
    ("own", "handling", "said"),
    [
        ("", None, []),
        (
            "<delivery-failure-params><redelivery-limit>4</redelivery-limit></delivery-failure-params>",
            None,
            ["the limit of queue://Q is 4; end it with 5:delete, or 5:move(queue:Q.dlq)"],
        ),
    ],
)
def test_a_template_that_is_not_there_is_missing_and_nothing_is_said_of_what_it_holds(
    own: str, handling: str | None, said: list[str]
) -> None:
    module = _TEMPLATE.format(own=own).replace('template name="T"', 'template name="Other"')
    missing = (
        "the template 'T' of queue://Q isn't in these files; it may give limit, delay and error destination"
    )
    assert bean_on("q", module, factory="jms/cf") == (handling, [missing, *said])


def test_a_weighted_distributed_queue_has_the_rules_of_its_members() -> None:
    module = """<weblogic-jms>
      <distributed-queue name="D"><jndi-name>d</jndi-name>
        <distributed-queue-member name="A"><weight>1</weight></distributed-queue-member>
        <distributed-queue-member name="m2"><physical-destination-name>B</physical-destination-name>
        </distributed-queue-member></distributed-queue>
      <queue name="A"><delivery-failure-params><redelivery-limit>2</redelivery-limit>
        <error-destination>E</error-destination></delivery-failure-params></queue>
      <queue name="B"><delivery-failure-params><redelivery-limit>2</redelivery-limit>
        <error-destination>E</error-destination></delivery-failure-params></queue><queue name="E"/>
    </weblogic-jms>"""
    assert bean_on("d", module) == ("3:move(queue:E)", [])
    others = module.replace(">2</redelivery-limit>", ">3</redelivery-limit>", 1)
    differ = "the members of queue://D differ in limit, delay or error destination; those of 'A' are used"
    assert bean_on("d", others) == ("4:move(queue:E)", [differ])
    (missing,) = bean_on("d", module.replace('queue name="A"', 'queue name="Z"'))[1]
    assert missing.startswith("the member 'A' of queue://D isn't in these files")


def test_a_name_counts_within_its_module() -> None:
    """Two modules may have queues of one name, and templates too."""
    second = _TEMPLATE.format(own="").replace(">q<", ">p<").replace(">7<", ">1<")
    assert bean_on("q", _TEMPLATE.format(own=""), second)[0] == "1:300; 8:move(queue:E)"
    assert bean_on("p", _TEMPLATE.format(own=""), second)[0] == "1:300; 2:move(queue:E)"


@pytest.mark.parametrize(
    ("factory", "said"), [("jms/cf", 1), ("", 0), ("weblogic.jms.MessageDrivenBeanConnectionFactory", 0)]
)
def test_the_delay_of_a_factory_that_was_not_read_is_not_ruled_out(factory: str, said: int) -> None:
    module = _TEMPLATE.format(own="").replace(">300<", ">-1<")
    handling, notes = bean_on("q", module, factory=factory)
    assert handling == "8:move(queue:E)"
    assert [note.partition("; ")[0] for note in notes] == [
        "the connection factory jms/cf isn't in these files"
    ] * said


def test_a_foreign_destination_has_the_rules_of_the_queue_that_it_leads_to() -> None:
    """W28, W44: the wrapper of a queue at another server."""
    foreign, module = ((FOLDER / name).read_bytes() for name in ("foreign-jms.xml", "shop-jms.xml"))
    for files in ((foreign, module), (module, foreign)):
        handling = bean_on("jms/remote/Orders", *files, factory="jms/remote/CF")
        assert handling == ("1:2000; 6:move(queue:OrderErrors)", [])
    found = read("foreign-jms.xml", "shop-jms.xml")
    assert found.destinations["jms/remote/Orders"] == "queue://OrderQueue"
    assert found.destinations["jms/returns"] == "queue://shop.returns"
    assert found.destinations["jms/news"] == "topic://shop.news"
    assert "jms/remote/Elsewhere" not in found.destinations
    assert "foreign-secret" not in str(found.dropped)


def test_a_foreign_destination_whose_server_was_not_read_is_named() -> None:
    foreign, module = ((FOLDER / name).read_bytes() for name in ("foreign-jms.xml", "shop-jms.xml"))
    for name, files in (("Orders", (foreign,)), ("Elsewhere", (foreign, module))):
        handling, (note,) = bean_on(f"jms/remote/{name}", *files)
        assert handling is None
        assert "of the foreign server 'Shop', which isn't in these files" in note
        assert "import its *-jms.xml too" in note


def test_a_resource_link_leads_to_the_destination_of_a_module_in_the_application() -> None:
    bean = (
        "<weblogic-ejb-jar><weblogic-enterprise-bean><ejb-name>B</ejb-name><message-driven-descriptor>"
        "<destination-resource-link>shop-jms#OrderQueue</destination-resource-link>"
        "<connection-factory-resource-link>shop-jms#ShopXACF</connection-factory-resource-link>"
        "</message-driven-descriptor></weblogic-enterprise-bean></weblogic-ejb-jar>"
    )
    found = read_descriptor(bean, (FOLDER / "shop-jms.xml").read_bytes())
    spec = spec_of(found)
    assert spec.redelivery_handling == "1:2000; 6:move(queue:OrderErrors)"
    assert spec.destination == ("lookup://shop-jms#OrderQueue",)
    assert found.destinations["shop-jms#OrderQueue"] == "queue://OrderQueue"


def test_a_bean_without_a_descriptor_of_weblogic_finds_its_queue_in_the_module_too() -> None:
    found = read("ejb-jar.xml", "shop-jms.xml")
    assert found.activations["OrderBean"]["RedeliveryHandling"] == "6:move(queue:OrderErrors)"


def test_a_bean_whose_destination_stands_in_the_standard_descriptor_may_have_little_in_weblogics() -> None:
    """Without `message-driven-descriptor` the other descriptor says that it is message-driven."""
    weblogic = (
        "<weblogic-ejb-jar><weblogic-enterprise-bean><ejb-name>{name}</ejb-name><transaction-descriptor>"
        "<trans-timeout-seconds>90</trans-timeout-seconds></transaction-descriptor><dispatch-policy>few"
        "</dispatch-policy></weblogic-enterprise-bean></weblogic-ejb-jar>"
    )
    ejb_jar = (FOLDER / "ejb-jar.xml").read_text(encoding="utf-8")
    for texts in ((ejb_jar, weblogic.format(name="OrderBean")), (weblogic.format(name="OrderBean"), ejb_jar)):
        found = read_descriptor(*texts)
        spec = spec_of(found, "OrderBean")
        assert spec.transaction_timeout == timedelta(seconds=90)
        assert "dispatch_policy" in str(spec.without_effect)
        assert "WebLogic keeps limit, delay and error destination" in str(found.notes["OrderBean"])
    other = read_descriptor(ejb_jar, weblogic.format(name="Stock"))
    assert sorted(other.activations) == ["OrderBean", "PriceBean"]
    assert "weblogic-ejb-jar" in other.dropped


def test_values_as_weblogics_schema_has_them_w3_w17() -> None:
    bean = (
        "<weblogic-ejb-jar><weblogic-enterprise-bean><ejb-name>B</ejb-name><message-driven-descriptor><pool>"
        "<idle-timeout-seconds>0</idle-timeout-seconds></pool><destination-jndi-name>q</destination-jndi-name>"
        "<durable-subscription-deletion>Y</durable-subscription-deletion>"
        "<generate-unique-jms-client-id>N</generate-unique-jms-client-id>"
        "</message-driven-descriptor></weblogic-enterprise-bean></weblogic-ejb-jar>"
    )
    spec = ActivationSpec.from_xml(bean)
    assert spec.pool_idle_timeout is None, "0 is no limit there"
    assert (spec.durable_subscription_deletion, spec.generate_unique_client_id) == (True, False)


def test_a_link_of_the_application_may_be_a_resource_link() -> None:
    bean = (
        "<message-driven><ejb-name>B</ejb-name><message-destination-link>Orders</message-destination-link>"
        "</message-driven>"
    )
    links = (
        "<weblogic-ejb-jar><message-destination-descriptor>"
        "<message-destination-name>Orders</message-destination-name>"
        "<destination-resource-link>shop-jms#OrderQueue</destination-resource-link>"
        "</message-destination-descriptor></weblogic-ejb-jar>"
    )
    assert ActivationSpec.from_xml(bean, links).destination == ("lookup://shop-jms#OrderQueue",)


@pytest.mark.parametrize("order", [("ejb-jar.xml", "sun-ejb-jar.xml"), ("sun-ejb-jar.xml", "ejb-jar.xml")])
def test_the_beans_of_glassfish_in_elements(order: tuple[str, str]) -> None:
    found = read_descriptor(
        *(
            (FOLDER / name).read_text(encoding="utf-8").replace("destinationLookup", "useJNDI")
            for name in order
        )
    )
    assert sorted(found.activations) == ["OrderBean", "PriceBean"]
    assert spec_of(found, "OrderBean") == ActivationSpec(
        ejb_name="OrderBean",
        ejb_class="com.example.OrderBean",
        messaging_type="javax.jms.MessageListener",
        transaction_type="container",
        transaction_attribute="required",
        acknowledge_mode="auto_acknowledge",
        destination_type="queue",
        destination="lookup://jms/OrderQueue",
        message_selector="region = 'EU' AND amount > 0",
        jms_conn_id="jms/ShopCF",
        transaction_timeout=90,
        dispatch_policy="orders",
        endpoint_pool_max_size=12,
        endpoint_pool_steady_size=2,
        endpoint_pool_resize_count=2,
        pool_idle_timeout=-1,
    )
    spec = spec_of(found, "PriceBean")
    assert (spec.destination, spec.subscription_name) == (("lookup://jms/PriceTopic",), "prices")
    assert "endpoint_pool_max_size" not in spec.model_fields_set, "0 is no limit in GlassFish"
    notes = "\n".join(found.notes["OrderBean"])
    assert "jms_conn_id: jms/ShopCF is a JNDI name" in notes
    assert "GlassFish may handle up to 12 at once" in notes
    assert "WebLogic" not in notes
    assert "a setting of its resource adapter and of the broker" in notes
    assert ROLES in notes
    dropped = "\n".join(found.dropped)
    bean = "sun-ejb-jar > enterprise-beans > ejb 'OrderBean'"
    assert (
        f"{bean} > mdb-connection-factory > default-resource-principal: the Airflow connection holds"
        in dropped
    )
    assert f"{bean} > jms-max-messages-load: prefetch sets" in dropped
    assert "ejb 'Stock'" in dropped
    assert "secret" not in dropped


def adapted(jndi_name: str, adapter: str, **properties: str) -> str:
    """Return a `sun-ejb-jar.xml` with a bean of a resource adapter."""
    config = "".join(
        f"<activation-config-property><activation-config-property-name>{name}"
        f"</activation-config-property-name><activation-config-property-value>{value}"
        "</activation-config-property-value></activation-config-property>"
        for name, value in properties.items()
    )
    return (
        f"<sun-ejb-jar><enterprise-beans><ejb><ejb-name>B</ejb-name><jndi-name>{jndi_name}</jndi-name>"
        f"<mdb-resource-adapter><resource-adapter-mid>{adapter}</resource-adapter-mid>"
        f"<activation-config>{config}</activation-config></mdb-resource-adapter></ejb></enterprise-beans>"
        "</sun-ejb-jar>"
    )


def test_with_a_resource_adapter_the_jndi_name_of_a_bean_is_its_own() -> None:
    """Its properties say what to consume, in either file; the one of GlassFish itself goes by the name."""
    bean = (
        "<message-driven><ejb-name>B</ejb-name><activation-config><activation-config-property>"
        "<activation-config-property-name>destination</activation-config-property-name>"
        "<activation-config-property-value>queue://Queue1</activation-config-property-value>"
        "</activation-config-property></activation-config></message-driven>"
    )
    assert ActivationSpec.from_xml(bean, adapted("B", "ratest")).destination == ("queue://Queue1",)
    assert "taken" not in str(read_descriptor(bean, adapted("B", "ratest")).notes)
    assert ActivationSpec.from_xml(adapted("jms/Q", "jmsra")).destination == ("lookup://jms/Q",)
    generic = adapted(
        "B", "genericra", DestinationType="javax.jms.Queue", DestinationProperties="a=b,PhysicalName=Q"
    )
    found = read_descriptor(generic)
    assert spec_of(found).destination == ("Q",)
    with pytest.raises(ConfigurationError, match="destination: missing"):
        ActivationSpec.from_xml(adapted("B", "ratest"))


def test_the_pool_of_the_adapter_that_delivers_goes_before_that_of_the_server() -> None:
    bean = (
        "<message-driven><ejb-name>B</ejb-name><activation-config><activation-config-property>"
        "<activation-config-property-name>EndpointPoolMaxSize</activation-config-property-name>"
        "<activation-config-property-value>10</activation-config-property-value>"
        "</activation-config-property></activation-config></message-driven>"
    )
    weblogic = (
        "<weblogic-ejb-jar><weblogic-enterprise-bean><ejb-name>B</ejb-name><message-driven-descriptor><pool>"
        "<max-beans-in-free-pool>32</max-beans-in-free-pool></pool><destination-jndi-name>q"
        "</destination-jndi-name></message-driven-descriptor></weblogic-enterprise-bean></weblogic-ejb-jar>"
    )
    for texts in ((bean, weblogic), (weblogic, bean)):
        found = read_descriptor(*texts)
        assert spec_of(found).endpoint_pool_max_size == 10
        assert "endpoint_pool_max_size: using 10 of EndpointPoolMaxSize, not 32" in found.notes["B"][0]


def test_a_bean_that_only_glassfish_describes_is_known_by_its_elements() -> None:
    sun = (FOLDER / "sun-ejb-jar.xml").read_bytes()
    assert sorted(read_descriptor(sun).activations) == ["OrderBean", "PriceBean"]
    session = (
        "<sun-ejb-jar><enterprise-beans><ejb><ejb-name>S</ejb-name><jndi-name>ejb/S</jndi-name></ejb>"
        "</enterprise-beans></sun-ejb-jar>"
    )
    with pytest.raises(ConfigurationError, match="no activation found"):
        read_descriptor(session)


def test_a_logical_destination_has_its_jndi_name_in_the_file_of_glassfish_w19() -> None:
    bean = (
        "<message-driven><ejb-name>B</ejb-name><message-destination-link>Orders</message-destination-link>"
        "</message-driven>"
    )
    sun = (
        "<glassfish-ejb-jar><enterprise-beans><message-destination>"
        "<message-destination-name>Orders</message-destination-name><jndi-name>jms/Orders</jndi-name>"
        "</message-destination></enterprise-beans></glassfish-ejb-jar>"
    )
    assert ActivationSpec.from_xml(bean, sun).destination == ("lookup://jms/Orders",)


def test_the_elements_of_the_tables_are_all_read_w42() -> None:
    """Each becomes an option, or is said to have no meaning here; none is dropped."""
    server = {
        "connection-factory-jndi-name": "jms/cf",
        "destination-jndi-name": "jms/orders",
        "init-suspend-seconds": "5",
        "initial-context-factory": "a.Factory",
        "jms-client-id": "shop",
        "jms-polling-interval-seconds": "20",
        "max-suspend-seconds": "50",
        "provider-url": "stomp://broker.example.com:61613",
    }
    standard = {"acknowledge-mode": "Dups-ok-acknowledge", "transaction-type": "Container"}
    destination = {"destination-type": "javax.jms.Topic", "subscription-durability": "Durable"}

    def elements(texts: dict[str, str]) -> str:
        return "".join(f"<{tag}>{text}</{tag}>" for tag, text in texts.items())

    ejb_jar = (
        f"<ejb-jar><enterprise-beans><message-driven><ejb-name>B</ejb-name>{elements(standard)}"
        f"<message-driven-destination>{elements(destination)}</message-driven-destination></message-driven>"
        "</enterprise-beans><assembly-descriptor><container-transaction><method><ejb-name>B</ejb-name>"
        "<method-name>*</method-name></method><trans-attribute>NotSupported</trans-attribute>"
        "</container-transaction></assembly-descriptor></ejb-jar>"
    )
    weblogic = (
        "<weblogic-ejb-jar><weblogic-enterprise-bean><ejb-name>B</ejb-name><message-driven-descriptor><pool>"
        "<max-beans-in-free-pool>8</max-beans-in-free-pool>"
        "<initial-beans-in-free-pool>3</initial-beans-in-free-pool></pool>"
        "<timer-descriptor><persistent-store-logical-name>s</persistent-store-logical-name></timer-descriptor>"
        f"{elements(server)}</message-driven-descriptor><transaction-descriptor>"
        "<trans-timeout-seconds>90</trans-timeout-seconds></transaction-descriptor>"
        "<dispatch-policy>work</dispatch-policy></weblogic-enterprise-bean><security-role-assignment>"
        "<role-name>r</role-name><principal-name>p</principal-name></security-role-assignment>"
        "</weblogic-ejb-jar>"
    )
    application = (
        "<weblogic-application><ejb><start-mdbs-with-application>true</start-mdbs-with-application></ejb>"
        "</weblogic-application>"
    )
    found = read_descriptor(ejb_jar, weblogic, application)
    assert found.dropped == ()
    spec = spec_of(found)
    assert spec == ActivationSpec(
        ejb_name="B",
        acknowledge_mode="dups_ok_acknowledge",
        transaction_type="container",
        transaction_attribute="not_supported",
        destination_type="topic",
        subscription_durability="durable",
        subscription_name="B",
        jms_conn_id="jms/cf",
        destination="lookup://jms/orders",
        init_suspend=5,
        max_suspend=50,
        initial_context_factory="a.Factory",
        jms_client_id="shop",
        polling_interval=20,
        connection_url="stomp://broker.example.com:61613",
        endpoint_pool_max_size=8,
        endpoint_pool_steady_size=3,
        timer_descriptor="s",
        transaction_timeout=90,
        dispatch_policy="work",
    )
    without = {
        note.partition(":")[0] for note in (*spec.without_effect, *found.notes["B"]) if "accepted" in note
    }
    assert without == {
        "initial_context_factory",
        "timer_descriptor",
        "dispatch_policy",
        "run_as_principal",
        "start_with_application",
    }


def test_roles_and_the_settings_of_an_application_are_said_as_the_option_table_does_w40_w42() -> None:
    found = read("ejb-jar.xml", "weblogic-ejb-jar.xml", "weblogic-application.xml")
    for bean in ("OrderBean", "PriceBean"):
        assert found.notes[bean][-2:] == (
            ROLES,
            ("start_with_application: accepted, no effect: an activation starts with its task or trigger"),
        )
    dropped = "\n".join(found.dropped)
    assert "security-role-assignment" not in dropped
    assert "weblogic-application > module: a JMS module is a separate file" in dropped
    assert "weblogic-application > max-threads-constraint: endpoint_pool_max_size bounds" in dropped


def test_each_input_of_a_sink_is_an_activation_of_its_own_p10() -> None:
    found = read("dynamoMessagingSystem.xml")
    assert list(found.activations) == [
        "/shop/Several > Orders",
        "/shop/Several > Events > patchbay:/shop/Cancelled",
        "/shop/Several > Events > patchbay:/shop/Shipped",
        "/shop/One",
    ]
    orders, cancelled, shipped, one = (spec_of(found, name) for name in found.activations)
    assert (orders.name, orders.message_selector) == ("/shop/Several > Orders", "region = 'EU'")
    assert orders.destinations == (Destination.queue("shop/Orders"),)
    assert cancelled.durable_name == "Several-Cancelled"
    assert str(cancelled.redelivery) == "1:500; 2:move(queue:shop/Dead)"
    assert shipped.destinations == (Destination.topic("shop/Shipped"),)
    assert shipped.max_attempts is None
    assert one.name == "/shop/One"
    assert any("provider-name: the Airflow connection names the broker" in each for each in found.dropped)


def test_what_several_files_say_of_a_sink_is_combined_as_patch_bay_does_p10() -> None:
    """A later file adds inputs, and replaces what is said of one that is there."""
    sink = (
        "<message-sink><nucleus-name>/a/S</nucleus-name><input-port><port-name>{port}</port-name>"
        "<input-destination><destination-name>{name}</destination-name><destination-type>Queue"
        "</destination-type>{more}</input-destination></input-port></message-sink>"
    )
    redelivery = "<redelivery><max-attempts>4</max-attempts></redelivery>"
    first = sink.format(port="A", name="sqldms:/a", more="")
    again = sink.format(port="A", name="sqldms:/a", more=redelivery)
    second = sink.format(port="B", name="b", more="")
    assert list(read_descriptor(first, again).activations) == ["/a/S"]
    found = read_descriptor(first, second, again)
    assert found.activations["/a/S > A"]["max_attempts"] == "4"
    assert found.activations["/a/S > B"]["destination"] == "b"
    (note,) = found.notes["/a/S > A"]
    assert note.startswith("destination: sqldms:/a is a name in ATG's own JMS")
    assert found.notes["/a/S > B"] == ()


def test_a_sink_that_nobody_asked_for_may_be_wrong_p10() -> None:
    text = (FOLDER / "dynamoMessagingSystem.xml").read_text(encoding="utf-8")
    text = text.replace("<max-attempts>2<", "<max-attempts>some<")
    found = read_descriptor(text)
    assert spec_of(found, "/shop/One").name == "/shop/One"
    with pytest.raises(ConfigurationError, match="max_attempts: got 'some'"):
        spec_of(found, "/shop/Several > Events > patchbay:/shop/Cancelled")


def test_what_every_connector_has_is_said_in_one_line_and_nothing_of_what_has_no_value_j31() -> None:
    text = (FOLDER / "ra.xml").read_text(encoding="utf-8")
    text = text.replace(
        "</resourceadapter>\n</connector>",
        "<adminobject><adminobject-class>a.Queue</adminobject-class><config-property><config-property-name>Name"
        "</config-property-name><config-property-type>java.lang.String</config-property-type>"
        "</config-property></adminobject></resourceadapter></connector>",
    )
    empty = "".join(
        f"<config-property><config-property-name>{name}</config-property-name>"
        f"<config-property-type>java.lang.String</config-property-type>{value}</config-property>"
        for name, value in (
            ("MBeanObjectName", ""),
            ("Unheard", ""),
            ("TransformerMBeanName", "<config-property-value></config-property-value>"),
        )
    )
    found = read_descriptor(text.replace("<outbound-resourceadapter>", f"{empty}<outbound-resourceadapter>"))
    no_xa = "there is no XA; a transaction covers the broker alone, so store the message id with the effect"
    assert found.dropped == (
        f"connector > resourceadapter > outbound-resourceadapter > transaction-support: {no_xa}",
        (
            "connector > activationspec-class, adminobject-class, connectionfactory-impl-class, "
            "eis-type, "
            "managedconnectionfactory-class, messagelistener-type, resourceadapter-class, "
            "resourceadapter-version, vendor-name: describes the product, not message delivery"
        ),
    )
    assert set(found.connector) == {"ConnectionURL", "UserName", "Password", "Options"}


@pytest.mark.parametrize("first", ["<method-name>*</method-name>", "<method-name>ejbTimeout</method-name>"])
def test_a_transaction_attribute_is_that_of_the_method_that_gets_messages_w21(first: str) -> None:
    """One `container-transaction` may name methods of several beans, in any order."""
    text = f"""<ejb-jar><message-driven><ejb-name>a</ejb-name><transaction-type>Container</transaction-type>
      </message-driven><message-driven><ejb-name>b</ejb-name><transaction-type>Container</transaction-type>
      </message-driven><container-transaction><method><ejb-name>a</ejb-name><method-name>onMessage</method-name>
      </method><method><ejb-name>b</ejb-name><method-name>*</method-name></method>
      <trans-attribute>Required</trans-attribute></container-transaction><container-transaction>
      <method><ejb-name>a</ejb-name>{first}</method><trans-attribute>NotSupported</trans-attribute>
      </container-transaction></ejb-jar>"""
    found = read_descriptor(text).activations
    assert {name: fields["trans-attribute"] for name, fields in found.items()} == {
        "a": "Required",
        "b": "Required",
    }

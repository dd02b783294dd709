"""Whole descriptors as servers of today have them: namespaces, JMS 2.0 properties, much that isn't JMS."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec, Descriptor, read_descriptor
from airflow_provider_jmsjca.errors import ConfigurationError

FOLDER = Path(__file__).with_name("descriptors")


def read(*names: str) -> Descriptor:
    return read_descriptor(*((FOLDER / name).read_bytes() for name in names), titles=names)


def test_a_bean_of_weblogic_12_with_its_module_w13_w14() -> None:
    found = read("ejb-jar.xml", "weblogic-ejb-jar.xml", "shop-jms.xml")

    assert ActivationSpec.from_descriptor(found, "OrderBean") == ActivationSpec(
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
        "concurrency_mode: not said, messages are handled one by one; "
        "WebLogic handles up to 16 at once, as sync does (a session for each); the order is lost then"
    )
    assert found.notes["OrderBean"] == (
        "provider-url: dropped, t3 is no transport; the Airflow connection names the broker",
        "jms_conn_id: jms/shop/ShopXACF is a JNDI name; replace it by the id of your Airflow connection",
        WAITING,
        (
            "use_store: set it before the first run. Messages that waited in the stopped bean may come "
            "with the redelivered flag; without a store that counts as a failure, and 1:2000 acts on it"
        ),
        concurrency,
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
    spec = ActivationSpec.from_descriptor(found, "PriceBean")

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


WAITING = (
    "redelivery delay: a message that waits holds its place here, in serial all others wait with it; "
    "on WebLogic it waits in the server. Above 5 s, park and use_store free the place"
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
            "end it with 6:move(queue:OrderQueue.dlq)",
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

    assert ActivationSpec.from_descriptor(found, "OrderBean").redelivery_handling == handling
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
    assert ActivationSpec.from_descriptor(found, "OrderBean").redelivery_handling == "3:5"


def test_a_queue_that_a_bean_only_sends_to_is_not_consumed_w19() -> None:
    text = (FOLDER / "ejb-jar.xml").read_text(encoding="utf-8").replace("destinationLookup", "useJNDI")
    found = read_descriptor(text, (FOLDER / "weblogic-ejb-jar.xml").read_bytes())
    assert ActivationSpec.from_descriptor(found, "OrderBean").destination == ("lookup://jms/shop/OrderQueue",)


def test_where_two_descriptors_differ_the_servers_own_holds_and_the_other_is_named() -> None:
    text = (FOLDER / "ejb-jar.xml").read_text(encoding="utf-8")
    text = text.replace(">jms/shop/OrderQueue<", ">java:app/orders<")
    found = read_descriptor(text, (FOLDER / "weblogic-ejb-jar.xml").read_bytes())
    assert ActivationSpec.from_descriptor(found, "OrderBean").destination == ("lookup://jms/shop/OrderQueue",)
    assert found.notes["OrderBean"][0] == (
        "destination: jms/shop/OrderQueue of destination-jndi-name is taken, not java:app/orders of "
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
    assert ActivationSpec.from_descriptor(found) == ActivationSpec(
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
    assert ActivationSpec.from_xml(ejb_jar, sun) == ActivationSpec(ejb_name="B", destination="queue://Queue1")


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
    assert [note.partition(":")[0] for note in found.notes["OrderBean"]] == ["provider-url", "jms_conn_id"]
    assert "RedeliveryHandling" not in found.activations["OrderBean"]

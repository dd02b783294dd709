"""Deployment descriptors: J31, W13, W14, W19, W21, P6-P10."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.migrate.descriptor import read_descriptor
from airflow_provider_jmsjca.migrate.elements import Element
from tests.unit.core.texts import ANY_TEXT

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))

EJB_JAR = """<?xml version="1.0" encoding="ISO-8859-1"?>
<ejb-jar xmlns="http://java.sun.com/xml/ns/j2ee">
  <description>not read</description>
  <enterprise-beans>
    <session><ejb-name>Other</ejb-name></session>
    <message-driven>
      <ejb-name>Orders</ejb-name>
      <ejb-class>com.example.OrdersBean</ejb-class>
      <messaging-type>javax.jms.MessageListener</messaging-type>
      <transaction-type>Container</transaction-type>
      <acknowledge-mode>Auto-acknowledge</acknowledge-mode>
      <message-driven-destination>
        <destination-type>javax.jms.Topic</destination-type>
        <subscription-durability>Durable</subscription-durability>
      </message-driven-destination>
      <activation-config>
        <activation-config-property>
          <activation-config-property-name>subscriptionName</activation-config-property-name>
          <activation-config-property-value>sub</activation-config-property-value>
        </activation-config-property>
        <activation-config-property>
          <activation-config-property-name>ConcurrencyMode</activation-config-property-name>
          <activation-config-property-value>cc</activation-config-property-value>
        </activation-config-property>
      </activation-config>
    </message-driven>
  </enterprise-beans>
  <assembly-descriptor>
    <container-transaction>
      <method><ejb-name>Orders</ejb-name><method-name>onMessage()</method-name></method>
      <trans-attribute>Required</trans-attribute>
    </container-transaction>
  </assembly-descriptor>
</ejb-jar>
"""
WEBLOGIC = """<weblogic-ejb-jar>
  <weblogic-enterprise-bean>
    <ejb-name>Orders</ejb-name>
    <message-driven-descriptor>
      <pool><max-beans-in-free-pool>5</max-beans-in-free-pool>
        <initial-beans-in-free-pool>2</initial-beans-in-free-pool></pool>
      <timer-descriptor><persistent-store-logical-name>s</persistent-store-logical-name></timer-descriptor>
      <destination-jndi-name>jms/orders</destination-jndi-name>
      <connection-factory-jndi-name>jms/cf</connection-factory-jndi-name>
      <jms-polling-interval-seconds>20</jms-polling-interval-seconds>
      <jms-client-id>client</jms-client-id>
      <generate-unique-jms-client-id>true</generate-unique-jms-client-id>
      <init-suspend-seconds>5</init-suspend-seconds>
    </message-driven-descriptor>
    <transaction-descriptor><trans-timeout-seconds>600</trans-timeout-seconds></transaction-descriptor>
    <dispatch-policy>queue1</dispatch-policy>
  </weblogic-enterprise-bean>
</weblogic-ejb-jar>
"""
PATCH_BAY = """<dynamo-message-system><patchbay>
<message-sink>
  <nucleus-name>/fulfillment/OrderFulfiller</nucleus-name>
  <input-port>
    <port-name>in</port-name>
    <input-destination>
      <destination-name>patchbay:/Fulfillment/SubmitOrder</destination-name>
      <destination-type>Topic</destination-type>
      <durable-subscriber-name>
        OrderFulfiller-SubmitOrder
      </durable-subscriber-name>
      <redelivery>
       <max-attempts>3</max-attempts>
       <delay>60000</delay>
       <failure-output-port>FulfillmentError</failure-output-port>
      </redelivery>
    </input-destination>
  </input-port>
  <redelivery-port>
    <port-name>FulfillmentError</port-name>
    <output-destination>
      <destination-name>patchbay:/Fulfillment/ErrorNotification</destination-name>
      <destination-type>Queue</destination-type>
    </output-destination>
    <output-destination>
      <destination-name>patchbay:/Fulfillment/DeadMessages</destination-name>
      <destination-type>Topic</destination-type>
    </output-destination>
  </redelivery-port>
</message-sink></patchbay></dynamo-message-system>
"""
RA = """<connector><resourceadapter>
  <config-property><config-property-name>ConnectionURL</config-property-name>
    <config-property-type>java.lang.String</config-property-type>
    <config-property-value>stomp://ra:1</config-property-value></config-property>
  <config-property><config-property-name>UserName</config-property-name>
    <config-property-value>u</config-property-value></config-property>
  <outbound-resourceadapter><connection-definition>
    <config-property><config-property-name>ClientId</config-property-name>
      <config-property-value>c</config-property-value></config-property>
    <connectionfactory-interface>javax.jms.QueueConnectionFactory</connectionfactory-interface>
  </connection-definition></outbound-resourceadapter>
  <inbound-resourceadapter><messageadapter><messagelistener><activationspec>
    <activationspec-class>x.Y</activationspec-class>
    <config-property><config-property-name>destination</config-property-name>
      <config-property-value>queue://q</config-property-value></config-property>
    <config-property><config-property-name>RedeliveryHandling</config-property-name>
      <config-property-value></config-property-value></config-property>
  </activationspec></messagelistener></messageadapter></inbound-resourceadapter>
</resourceadapter></connector>
"""


def test_ejb_jar_and_weblogic_ejb_jar_together_w13_w14() -> None:
    spec = ActivationSpec.from_xml(EJB_JAR, WEBLOGIC)
    assert spec == ActivationSpec(
        ejb_name="Orders",
        ejb_class="com.example.OrdersBean",
        messaging_type="javax.jms.MessageListener",
        transaction_type="container",
        transaction_attribute="required",
        acknowledge_mode="auto_acknowledge",
        destination_type="topic",
        subscription_durability="durable",
        subscription_name="sub",
        concurrency_mode="cc",
        endpoint_pool_max_size=5,
        endpoint_pool_steady_size=2,
        timer_descriptor="s",
        destination="lookup://jms/orders",
        jms_conn_id="jms/cf",
        polling_interval=timedelta(seconds=20),
        jms_client_id="client",
        generate_unique_client_id=True,
        init_suspend=5,
        transaction_timeout=600,
        dispatch_policy="queue1",
    )


def test_missing_transaction_attribute_w21() -> None:
    def jar(inner: str) -> str:
        return f"<ejb-jar><enterprise-beans>{inner}</enterprise-beans></ejb-jar>"

    bean = (
        "<message-driven><ejb-name>B</ejb-name><transaction-type>Container</transaction-type>"
        "<activation-config><activation-config-property>"
        "<activation-config-property-name>destination</activation-config-property-name>"
        "<activation-config-property-value>queue://q</activation-config-property-value>"
        "</activation-config-property></activation-config></message-driven>"
    )
    (note,) = read_descriptor(jar(bean)).notes["B"]
    assert note.startswith("transaction_attribute: not_supported, which a missing trans-attribute means")
    assert read_descriptor(bean).notes["B"] == ()
    whole = ActivationSpec.from_xml(jar(bean))
    assert whole.transacted is False
    assert "transaction_attribute: not_supported" in whole.to_yaml()
    assert ActivationSpec.from_xml(bean).transacted is True


def test_patch_bay_file_p6_p10() -> None:
    """P7, P9, P11."""
    spec = ActivationSpec.from_xml(PATCH_BAY)
    assert str(spec.redelivery) == (
        "1:60000; 3:move(queue:Fulfillment/ErrorNotification,topic:Fulfillment/DeadMessages)"
    )
    assert spec.destinations == (Destination.topic("Fulfillment/SubmitOrder"),)
    assert spec.durable_name == "OrderFulfiller-SubmitOrder"
    assert spec.name == "/fulfillment/OrderFulfiller"
    assert ActivationSpec.from_yaml(spec.to_yaml()) == spec


def _patch_bay_input(kind: str, subscriber: str = "", redelivery: str = "") -> ActivationSpec:
    return ActivationSpec.from_xml(
        "<message-sink><nucleus-name>/Sink</nucleus-name><input-port><input-destination>"
        f"<destination-name>patchbay:/Orders</destination-name><destination-type>{kind}</destination-type>"
        f"{subscriber}{redelivery}</input-destination></input-port>"
        "<redelivery-port><port-name>Failed</port-name><output-destination>"
        "<destination-name>patchbay:/Failed</destination-name></output-destination></redelivery-port>"
        "</message-sink>"
    )


@pytest.mark.parametrize(
    ("kind", "subscriber", "limits", "limbo"),
    [
        ("Queue", "", "<max-attempts>3</max-attempts><delay>60000</delay>", True),
        ("Queue", "", "<max-attempts>3</max-attempts>", True),
        ("Queue", "", "", False),
        (
            "Topic",
            "<durable-subscriber-name>s</durable-subscriber-name>",
            "<max-attempts>3</max-attempts>",
            True,
        ),
        ("Topic", "", "<max-attempts>3</max-attempts><delay>60000</delay>", False),
    ],
)
def test_patch_bay_redelivers_by_way_of_limbo_p12_p16(
    kind: str, subscriber: str, limits: str, *, limbo: bool
) -> None:
    """P12: a message that waits for its redelivery holds up none behind it. P16: nor does a refused move."""
    redelivery = f"<redelivery>{limits}<failure-output-port>Failed</failure-output-port></redelivery>"
    spec = _patch_bay_input(kind, subscriber, redelivery if limits else "")
    assert (spec.use_store, spec.non_blocking_redelivery) == (limbo, limbo)


def test_ra_xml_j31_j37() -> None:
    descriptor = read_descriptor(RA)
    assert descriptor.connector == {"ConnectionURL": "stomp://ra:1", "UserName": "u"}
    assert descriptor.connection_factories == {"javax.jms.QueueConnectionFactory": {"ClientId": "c"}}
    assert ActivationSpec.from_xml(RA) == ActivationSpec(destination="queue://q", redelivery_handling="")


def test_logical_destinations_w19() -> None:
    spec = ActivationSpec.from_xml(
        "<message-driven><ejb-name>B</ejb-name><message-destination-type>javax.jms.Queue</message-destination-type>"
        "<message-destination-link>Orders</message-destination-link>"
        "<message-destination-ref><message-destination-ref-name>jms/o</message-destination-ref-name>"
        "<message-destination-usage>Consumes</message-destination-usage></message-destination-ref></message-driven>"
    )
    assert spec.destination == ("lookup://Orders",)
    assert "message_destination_ref_name" in str(spec.without_effect)


def test_several_beans_need_a_name() -> None:
    both = EJB_JAR.replace(
        "</enterprise-beans>", "<message-driven><ejb-name>B</ejb-name></message-driven></enterprise-beans>"
    )
    with pytest.raises(ConfigurationError, match=r"several activations, .* \(--name\): Orders, B"):
        ActivationSpec.from_xml(both)
    with pytest.raises(ConfigurationError, match="no activation 'C', it has: Orders, B"):
        ActivationSpec.from_xml(both, name="C")
    assert ActivationSpec.from_xml(both, WEBLOGIC, name="Orders").ejb_name == "Orders"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "descriptor: empty, expected XML"),
        (" \n", "descriptor: empty, expected XML"),
        ("<a>", "not valid XML: no element found"),
        ("<a></b>", "not valid XML: mismatched tag at line 1"),
        ("<a/>", "no activation found"),
        (
            '<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>',
            "declarations in <!DOCTYPE ... [...]> are not supported",
        ),
        ('<!DOCTYPE a SYSTEM "x.dtd" []><a/>', "declarations in <!DOCTYPE ... [...]> are not supported"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', "no activation found"),
        ('<!DOCTYPE a SYSTEM "x.dtd">\n<a>&port;</a>', "entity &port; is not declared in the text"),
        ("<a>&x;</a>", "not valid XML: undefined entity"),
        ("<a>" * 100, "nested deeper than 64 elements"),
        ("<a>\ud800</a>", "half of a surrogate pair"),
        ("<a>" + "x" * (1 << 20) + "</a>", "expected at most 1048576"),
    ],
)
def test_refuses(text: str, fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_descriptor(text)
    assert fault in str(caught.value)


def test_a_connector_alone_is_no_activation() -> None:
    text = (
        "<resourceadapter><config-property><config-property-name>UserName</config-property-name>"
        "<config-property-value>u</config-property-value></config-property></resourceadapter>"
    )
    with pytest.raises(ConfigurationError, match="no activation, only a connector"):
        ActivationSpec.from_xml(text)


_PIECES = st.sampled_from(
    [
        "<message-driven>", "</message-driven>", "<activationspec>", "</activationspec>",
        "<message-sink>", "</message-sink>", "<input-destination>", "</input-destination>",
        "<config-property>", "</config-property>", "<config-property-name>", "</config-property-name>",
        '<?xml version="1.0" encoding="big5"?>', '<?xml version="1.0" encoding="cp037"?>',
        "destination", "&amp;", "&#0;", "<!--", "-->", "<![CDATA[", "]]>", "<?x?>", "<!DOCTYPE x>",
        "queue://q", " ",
    ]
)  # fmt: skip


@settings(max_examples=EXAMPLES, deadline=None)
@given(ANY_TEXT | st.lists(_PIECES, max_size=12).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert ActivationSpec.from_xml(text).destination


_DURABLE = """<?xml version="1.0" encoding="{encoding}"?>
<ejb-jar><enterprise-beans><message-driven>
  <ejb-name>Käufe</ejb-name>
  <transaction-type>Bean</transaction-type>
  <message-driven-destination>
    <destination-type>javax.jms.Topic</destination-type>
    <subscription-durability>Durable</subscription-durability>
  </message-driven-destination>
  <destination-jndi-name>topic://sales</destination-jndi-name>
</message-driven></enterprise-beans></ejb-jar>"""


def test_a_durable_bean_without_a_subscription_name_takes_its_own_w13_w30() -> None:
    """WebLogic's elements have no place for one, and JMS 2.0 leaves it to the server."""
    spec = ActivationSpec.from_xml(_DURABLE.format(encoding="utf-8"))
    assert (spec.subscription_name, spec.client_id_for()) == ("Käufe", "Käufe")
    properties = "".join(
        f"<activation-config-property><activation-config-property-name>{name}</activation-config-property-name>"
        f"<activation-config-property-value>{value}</activation-config-property-value>"
        "</activation-config-property>"
        for name, value in (("destination", "topic://sales"), ("subscriptionDurability", "Durable"))
    )
    spec = ActivationSpec.from_xml(
        f"<message-driven><ejb-name>B</ejb-name><activation-config>{properties}</activation-config>"
        "</message-driven>"
    )
    assert (spec.subscription_name, spec.client_id_for()) == ("B", "B")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1", "windows-1252"])
def test_bytes_are_read_in_the_encoding_they_declare(encoding: str) -> None:
    given = _DURABLE.format(encoding=encoding.removesuffix("-sig")).encode(encoding)
    assert list(read_descriptor(given).activations) == ["Käufe"]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (b'<?xml version="1.0" encoding="no-such"?><a/>', "its encoding can't be read: unknown"),
        (b'<?xml version="1.0" encoding="zip"?><a/>', "encoding"),
        (b'<?xml version="1.0"?><a>\xe4</a>', "not well-formed"),
        (b'<?xml version="1.0" encoding="utf-16"?><a/>', "encoding"),
        (b'<?xml version="1.0" encoding="utf-7"?><a/>', "its encoding can't be read"),
        (b" " * (1 << 20) + b"<a/>", "expected at most 1048576 bytes"),
    ],
)
def test_bytes_that_are_no_text_are_refused(given: bytes, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        read_descriptor(given)


def test_the_last_word_on_the_transaction_of_a_bean_holds_w21() -> None:
    def transaction(name: str, attribute: str) -> str:
        return (
            f"<container-transaction><method><ejb-name>{name}</ejb-name></method>"
            f"<trans-attribute>{attribute}</trans-attribute></container-transaction>"
        )

    def bean(name: str) -> str:
        return (
            f"<message-driven><ejb-name>{name}</ejb-name>"
            "<transaction-type>Container</transaction-type></message-driven>"
        )

    transactions = (
        transaction("b", "NotSupported"),
        transaction("*", "Required"),
        transaction("c", "Supports"),
    )
    text = f"<ejb-jar>{''.join((*map(bean, 'abc'), *transactions))}</ejb-jar>"
    found = read_descriptor(text).activations
    assert {name: fields["trans-attribute"] for name, fields in found.items()} == {
        "a": "Required", "b": "Required", "c": "Supports",
    }  # fmt: skip


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary() | st.lists(_PIECES, max_size=12).map("".join).map(str.encode))
def test_any_bytes_are_read_or_refused(given: bytes) -> None:
    with contextlib.suppress(ConfigurationError):
        assert ActivationSpec.from_xml(given).destination


def test_the_document_type_of_old_descriptors_is_passed_over_w13() -> None:
    text = """<?xml version="1.0"?>
<!DOCTYPE ejb-jar PUBLIC "-//Sun Microsystems, Inc.//DTD Enterprise JavaBeans 2.0//EN"
  "http://java.sun.com/dtd/ejb-jar_2_0.dtd">
<ejb-jar><enterprise-beans><message-driven>
  <ejb-name>orders</ejb-name>
  <transaction-type>Container</transaction-type>
  <message-driven-destination><destination-type>javax.jms.Queue</destination-type></message-driven-destination>
</message-driven></enterprise-beans></ejb-jar>"""
    assert read_descriptor(text).activation() == {
        "ejb-name": "orders",
        "transaction-type": "Container",
        "destination-type": "javax.jms.Queue",
        "trans-attribute": "NotSupported",
    }


def test_work_grows_with_the_number_of_beans(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = 0
    find = Element.find

    def counted(element: Element, tag: str) -> Iterator[Element]:
        nonlocal searched
        searched += 1
        return find(element, tag)

    monkeypatch.setattr(Element, "find", counted)
    work = []
    for number in (20, 40):
        searched = 0
        beans = "".join(
            f"<message-driven><ejb-name>b{each}</ejb-name></message-driven>" for each in range(number)
        )
        assert len(read_descriptor(f"<ejb-jar>{beans}</ejb-jar>").activations) == number
        work.append(searched)
    assert work[1] < 2.2 * work[0]

"""`airflow jms explain` and `airflow jms import`, through Airflow's own command line."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import yaml
from airflow.cli import cli_parser
from airflow.cli.simple_table import AirflowConsole
from airflow.models.connection import Connection
from airflow.utils.session import create_session

from airflow_provider_jmsjca import ActivationSpec
from tests.internals.cli import cells, print_rows
from tests.pace import at_most

DESCRIPTOR = """
<ejb-jar><enterprise-beans><message-driven>
  <ejb-name>OrderBean</ejb-name>
  <activation-config>
    <activation-config-property>
      <activation-config-property-name>destination</activation-config-property-name>
      <activation-config-property-value>Orders</activation-config-property-value>
    </activation-config-property>
    <activation-config-property>
      <activation-config-property-name>destinationType</activation-config-property-name>
      <activation-config-property-value>javax.jms.Queue</activation-config-property-value>
    </activation-config-property>
    <activation-config-property>
      <activation-config-property-name>BatchSize</activation-config-property-name>
      <activation-config-property-value>10</activation-config-property-value>
    </activation-config-property>
    <activation-config-property>
      <activation-config-property-name>ConcurrencyMode</activation-config-property-name>
      <activation-config-property-value>sync</activation-config-property-value>
    </activation-config-property>
    <activation-config-property>
      <activation-config-property-name>Password</activation-config-property-name>
      <activation-config-property-value>bean-secret</activation-config-property-value>
    </activation-config-property>
  </activation-config>
</message-driven></enterprise-beans></ejb-jar>
"""


def run(*arguments: str) -> None:
    parsed = cli_parser.get_parser().parse_args(["jms", *arguments])
    parsed.func(parsed)


@pytest.fixture
def _connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_JMS_CLI",
        json.dumps(
            {
                "conn_type": "jms",
                "host": "stomp://a.example:61613/?JMSJCA.redeliveryhandling=3:50",
                "login": "app",
                "password": "conn-secret",
            }
        ),
    )


@pytest.mark.usefixtures("_connection", "metadata")
def test_explain_shows_value_origin_and_default_of_all_three_levels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """J31, J113: the activation beats the connection; secrets are masked."""
    monkeypatch.setenv("AIRFLOW__JMSJCA__OPTIONS", "JMSJCA.concurrencymode=cc")
    spec = tmp_path / "orders.yaml"
    spec.write_text("destination: queue://orders\nBatchSize: 10\n")

    run("explain", "--conn-id", "jms_cli", "--activation", str(spec), "--only-set", "-o", "json")

    printed = capsys.readouterr().out
    rows = {row["option"]: row for row in json.loads(printed)}
    assert rows["batch_size"]["value"] == "10"
    assert rows["batch_size"]["origin"] == "activation orders.yaml: BatchSize"
    assert rows["batch_size"]["default"] == "1"
    assert rows["redelivery_handling"]["value"] == "3:50"
    assert rows["redelivery_handling"]["origin"].startswith("connection 'jms_cli'")
    assert rows["concurrency_mode"]["value"] == "cc"
    assert rows["password"]["value"] == "***"
    assert "conn-secret" not in printed


@pytest.mark.usefixtures("_connection", "metadata")
def test_explain_shows_the_connection_an_activation_looks_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """J68, J69, J70."""
    spec = tmp_path / "orders.yaml"
    spec.write_text("destination: queue://orders\nConnectionURL: lookup://jms_cli\n")

    run("explain", "--activation", str(spec), "--only-set", "-o", "json")

    rows = {row["option"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["connection_url"]["value"].startswith("stomp://a.example:61613")
    assert rows["username"]["value"] == "app"


@pytest.mark.usefixtures("metadata")
def test_explain_finds_connections_of_the_database_and_the_one_an_activation_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """J31, W45: the page, or `airflow connections add`, stores them there."""
    with create_session() as session:
        session.add(Connection(conn_id="jms_stored", conn_type="jms", host="stored.example", login="app"))
    spec = tmp_path / "orders.yaml"
    spec.write_text("destination: queue://orders\nconnection-factory-jndi-name: jms_stored\n")

    for arguments in (["--conn-id", "jms_stored"], ["--activation", str(spec)]):
        run("explain", *arguments, "--only-set", "-o", "json")
        rows = {row["option"]: row for row in json.loads(capsys.readouterr().out)}
        assert rows["connection_url"]["value"] == "stomp://stored.example"
        assert rows["username"]["origin"] == "connection 'jms_stored': username"


@pytest.mark.usefixtures("_connection", "metadata")
@pytest.mark.parametrize(
    ("named", "said"), [("jms/no.such", "'jms/no.such', which is not defined in Airflow. "), ("jms_cli", "")]
)
def test_explain_says_that_a_task_takes_the_connection_of_the_activation(
    named: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "orders.yaml"
    spec.write_text(f"destination: queue://orders\njms_conn_id: {named}\n")

    run("explain", "--conn-id", "jms_cli", "--activation", str(spec), "--only-set", "-o", "json")

    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert len(notes) == bool(said)
    assert said in "".join(notes)


def test_the_help_names_the_section(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("explain", "--help")
    assert "the section [jmsjca] with" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("metadata")
def test_explain_says_after_the_table_what_contradicts_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """J184: batches need sync or cc."""
    spec = tmp_path / "orders.yaml"
    spec.write_text("destination: queue://orders\nBatchSize: 10\n")

    with pytest.raises(SystemExit):
        run("explain", "--activation", str(spec), "--only-set", "-o", "json")

    printed = capsys.readouterr()
    assert {row["option"] for row in json.loads(printed.out)} == {"destination", "batch_size"}
    assert printed.err.splitlines()[-1].startswith("error: concurrency_mode: got serial, expected sync or cc")


@pytest.mark.usefixtures("metadata")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--conn-id", "missing"],
            (
                "connection 'missing' is not defined in Airflow; airflow connections list shows those that "
                "are. If it is there, this process may have another [core] fernet_key than the one that "
                "stored it"
            ),
        ),
        (["--activation", "/no/such/file"], "/no/such/file: can't be read: No such file or directory"),
    ],
)
def test_explain_says_in_one_line_what_is_missing(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        run("explain", *arguments)

    assert left.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {said}"


def test_explain_says_what_can_not_be_looked_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "orders.yaml"
    spec.write_text("destination: queue://orders\nredelivery_handling: 3:move(queue:lookup://no.such)\n")

    with pytest.raises(SystemExit):
        run("explain", "--activation", str(spec))

    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: destination lookup://no.such: there is no such administered object")


def test_explain_refuses_a_broker_that_nothing_here_can_reach(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A descriptor of Java CAPS brings such a URL along."""
    spec = tmp_path / "orders.yaml"
    spec.write_text("destination: queue://orders\nConnectionURL: stcms://caps01:18007\n")

    with pytest.raises(SystemExit) as left:
        run("explain", "--activation", str(spec))

    assert left.value.code == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: connection_url: no transport for scheme 'stcms'")


@pytest.mark.usefixtures("_connection", "metadata")
def test_explain_refuses_a_name_that_stomp_can_not_look_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "orders.yaml"
    spec.write_text("destination: queue://jndi://queues/q1234\n")

    with pytest.raises(SystemExit) as left:
        run("explain", "--conn-id", "jms_cli", "--activation", str(spec), "--only-set", "-o", "json")

    assert left.value.code == 1
    found = capsys.readouterr()
    assert "refused: STOMP can't look up names of jndi://" in found.out
    assert found.err.splitlines()[-1].startswith(
        "error: destination queue://jndi://queues/q1234: jndi:// names"
    )


def test_every_fault_of_a_spec_has_a_line_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "orders.yaml"
    spec.write_text("destination: queue://orders\nBatchSize: many\nHoldUntilAck: 7\n")

    with pytest.raises(SystemExit):
        run("explain", "--activation", str(spec))

    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    assert "BatchSize" in errors[0]
    assert "HoldUntilAck" in errors[1]


def test_import_prints_a_descriptor_as_yaml_without_its_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """J31, J50, J51, J54, J60."""
    descriptor = tmp_path / "ejb-jar.xml"
    descriptor.write_text(DESCRIPTOR)

    run("import", str(descriptor))

    printed = capsys.readouterr().out
    assert "bean-secret" not in printed
    found = yaml.safe_load(printed)
    assert found["destination"] == "Orders"
    assert found["batch_size"] == 10
    assert found["concurrency_mode"] == "sync"


def test_import_keeps_each_name_in_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever writes the descriptor names its queues."""
    name = "a&#10;jms_conn_id: evil&#x202E;&#x85;b"
    descriptor = tmp_path / "shop-jms.xml"
    descriptor.write_text(
        '<weblogic-jms xmlns="http://xmlns.oracle.com/weblogic/weblogic-jms">'
        f'<queue name="Q"><jndi-name>{name}</jndi-name><quota>{name}</quota></queue></weblogic-jms>'
    )
    bean = tmp_path / "ejb-jar.xml"
    bean.write_text(
        "<ejb-jar><enterprise-beans><message-driven><ejb-name>B</ejb-name><activation-config>"
        "<activation-config-property><activation-config-property-name>destination"
        f"</activation-config-property-name><activation-config-property-value>queue://{name}"
        "</activation-config-property-value></activation-config-property></activation-config>"
        "</message-driven></enterprise-beans></ejb-jar>"
    )

    run("import", str(bean), str(descriptor))

    printed = capsys.readouterr()
    spec = ActivationSpec.from_yaml(printed.out)
    assert spec.jms_conn_id != "evil"
    assert spec.destination[0].startswith("queue://a\njms_conn_id: evil\u202e")
    assert r"# destination.a\njms_conn_id: evil\u202e" in printed.out
    assert not re.search(r"^jms_conn_id: evil", printed.out + printed.err, re.MULTILINE)
    assert "\u202e" not in printed.out + printed.err


def test_a_name_in_an_error_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("explain", "--conn-id", "a\x1b[2J\x9b\nerror: forged")
    printed = capsys.readouterr().err
    assert r"a\x1b[2J\x9b\nerror: forged" in printed
    assert "\x1b" not in printed
    assert "\x9b" not in printed


WIDE = {
    "count": "12",
    "from": "queue://orders.europe.incoming",
    "reason": "ValueError: the customer has no valid address \x1b[2J[red]",
    "first": "2026-05-04T12:00:00.000+00:00",
    "example": "ID:broker-1.example.com-43211-1780000000000-3:7:1:1:12",
}


def printed(
    row: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *optional: str,
    columns: int = 80,
) -> tuple[list[str], str]:
    """Return the lines of a table on a terminal, and standard error."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("airflow_provider_jmsjca.cli.commands.is_tty", lambda: True)
    monkeypatch.setattr("airflow.cli.simple_table.is_tty", lambda: True)
    print_rows([row, row], "table", optional=optional)
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert max(map(len, lines)) <= columns
    return [line.rstrip() for line in lines], shown.err


def test_a_table_on_a_narrow_terminal_breaks_no_id(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, _ = printed(WIDE, capsys, monkeypatch)
    one = [
        "count    12",
        "from     queue://orders.europe.incoming",
        r"reason   ValueError: the customer has no valid address \x1b[2J[red]",
        "first    2026-05-04T12:00:00.000+00:00",
        "example  ID:broker-1.example.com-43211-1780000000000-3:7:1:1:12",
    ]
    assert lines == [*one, "", *one]
    lines, note = printed(WIDE, capsys, monkeypatch, "example", "first")
    assert lines[0].split() == ["count", "|", "from", "|", "reason"]
    assert lines[2].startswith("12    | queue://orders.europe.incoming | ValueError: ")
    assert note == "note: the terminal is too narrow for example, first; --output json has all\n"
    lines, note = printed(WIDE, capsys, monkeypatch, columns=200)
    assert (len(lines), note) == (5, "")
    assert all(text in lines[2] for text in (WIDE["first"], WIDE["example"]))
    named = {"name": "property JMS_Sun_JMSJCA_ExceptionMessage", "value": WIDE["example"], "type": "string"}
    lines, _ = printed(named, capsys, monkeypatch)
    assert lines[:3] == [f"{named['name']} (string)", f"    {WIDE['example']}", ""]


@pytest.mark.parametrize("text", ["\\" * 1_000_000, "[a" * 500_000, "\x1b" * 300_000])
def test_a_long_cell_takes_time_in_proportion(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.process_time()
    AirflowConsole().print_as_table([cells({"reason": text}, "table")])
    assert time.process_time() - began < at_most(5)
    assert "…" in capsys.readouterr().out


DROPPED = """<ejb-jar><enterprise-beans>
  <session><ejb-name>Cart</ejb-name><ejb-class>a.Cart</ejb-class></session>
  <message-driven>
    <description>says nothing</description>
    <ejb-name>Orders</ejb-name>
    <env-entry><env-entry-name>limit</env-entry-name><env-entry-value>bean-secret</env-entry-value></env-entry>
    <activation-config>
      <activation-config-property>
        <activation-config-property-name>destination</activation-config-property-name>
        <activation-config-property-value>queue://old</activation-config-property-value>
      </activation-config-property>
      <activation-config-property>
        <activation-config-property-name>destination</activation-config-property-name>
        <activation-config-property-value>queue://orders</activation-config-property-value>
      </activation-config-property>
    </activation-config>
  </message-driven>
  <message-driven><ejb-name>Other</ejb-name></message-driven>
</enterprise-beans></ejb-jar>"""


def test_import_reads_what_patch_bay_says_of_limbo_p21(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """P16, P21: one file for all sinks, beside the XML."""
    patch_bay = tmp_path / "dynamoMessagingSystem.xml"
    patch_bay.write_text(
        "<message-sink><nucleus-name>/a/Sink</nucleus-name><input-port><port-name>D</port-name>"
        "<input-destination><destination-name>patchbay:/orders</destination-name>"
        "<destination-type>Queue</destination-type></input-destination></input-port></message-sink>"
    )
    manager = tmp_path / "MessagingManager.properties"
    manager.write_text(
        "allowMessageDelays=true\nlimboDeliveryRetry=3\nlimboPollInterval=5000\n"
        "dataSource=/atg/dynamo/service/jdbc/JTDataSource\nother=1\n"
    )
    run("import", str(patch_bay), str(manager))
    printed = capsys.readouterr()
    found = yaml.safe_load(printed.out)
    assert (found["allow_message_delays"], found["limbo_delivery_retry"]) == (True, 3)
    assert "note: limboPollInterval: no effect: limbo is checked each second" in printed.err
    assert "note: dataSource: no effect: store_url of [jmsjca] names the database of limbo" in printed.err
    assert "note: dropped, not read here: MessagingManager.properties > other" in printed.err


def test_import_says_what_it_drops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    descriptor = tmp_path / "ejb-jar.xml"
    descriptor.write_text(DROPPED)

    run("import", "--name", "Orders", str(descriptor))

    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["destination"] == "queue://orders"
    bean = "ejb-jar > enterprise-beans > message-driven 'Orders'"
    properties = f"{bean} > activation-config > activation-config-property 'destination'"
    assert [line for line in printed.err.splitlines() if line.startswith("note: ")] == [
        "note: dropped, not read here: ejb-jar > enterprise-beans > session 'Cart'",
        f"note: dropped, not read here: {bean} > env-entry",
        f"note: dropped, not read here: {properties} > activation-config-property-value",
        "note: not printed: activation 'Other', see --name",
    ]
    assert "bean-secret" not in printed.out + printed.err


def test_import_says_which_files_it_can_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.xml").write_text(DESCRIPTOR)
    Path("bad.xml").write_text("<ejb-jar>")

    with pytest.raises(SystemExit):
        run("import", "good.xml", "bad.xml")

    assert "error: bad.xml: not valid XML: no element found at line 1" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["stcms://app:url-secret@jms:18007", "stcms://"])
def test_import_says_that_no_transport_leads_to_the_message_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    """J31: the adapter ships with a URL without a host."""
    descriptor = tmp_path / "ra.xml"
    descriptor.write_text(
        "<resourceadapter><config-property><config-property-name>ConnectionURL</config-property-name>"
        f"<config-property-value>{url}</config-property-value></config-property>"
        "</resourceadapter>"
    )

    run("import", str(descriptor))

    printed = capsys.readouterr()
    assert "# connection_url = stcms://" in printed.out
    assert "note: connection_url: no transport for scheme 'stcms' (the JMS IQ Manager can't be" in printed.err
    assert "expected one of: stomp, stomp+ssl, vm" in printed.err
    assert "url-secret" not in printed.out + printed.err


def test_import_prints_nothing_when_it_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bean, adapter = tmp_path / "ejb-jar.xml", tmp_path / "ra.xml"
    bean.write_text(DESCRIPTOR)
    adapter.write_text(
        "<resourceadapter><config-property><config-property-name>ConnectionURL</config-property-name>"
        "<config-property-value>stomp://</config-property-value></config-property></resourceadapter>"
    )
    with pytest.raises(SystemExit):
        run("import", str(bean), str(adapter))
    printed = capsys.readouterr()
    assert "error: connection URL: no host" in printed.err
    assert printed.out == ""


def test_explain_refuses_a_property_that_import_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A spec that is used as it stands must not lose what was meant for it."""
    descriptor = tmp_path / "ejb-jar.xml"
    descriptor.write_text(DESCRIPTOR.replace("BatchSize", "BatchSzie"))

    run("import", str(descriptor))
    printed = capsys.readouterr()
    assert "note: dropped, not read here: ejb-jar" in printed.err
    assert "activation-config-property 'BatchSzie'" in printed.err

    with pytest.raises(SystemExit):
        run("explain", "--activation", str(descriptor))
    said = "error: activation 'OrderBean': BatchSzie: unknown option (did you mean BatchSize?)"
    assert said in capsys.readouterr().err.splitlines()


def test_import_prints_the_password_when_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    descriptor = tmp_path / "ejb-jar.xml"
    descriptor.write_text(DESCRIPTOR)

    run("import", "--secrets", str(descriptor))

    assert yaml.safe_load(capsys.readouterr().out)["password"] == "bean-secret"


def test_the_documented_migration_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """J31, J37, J50, J51, J52, J53, J59, J101, W13, W14, W16, W18, W30."""
    page = (Path(__file__).parents[2] / "docs" / "migrate" / "weblogic.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"`([\w.-]+\.xml)`:\n\n```xml\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(text, encoding="utf-8")
    arguments, shown = re.findall(r"\$ airflow jms (import ejb-jar.*?)\n(.*?)```", page, re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)

    run(*arguments.split())

    printed = capsys.readouterr()
    notes = "".join(line for line in printed.err.splitlines(keepends=True) if line.startswith("note: "))
    assert printed.out + notes == shown
    assert "hunter2" not in shown
    spec = ActivationSpec.from_yaml(printed.out)
    assert spec.client_id_for() == "shop"
    assert spec.transacted


@pytest.mark.usefixtures("metadata")
@pytest.mark.parametrize("output", ["table", "plain", "json", "yaml"])
def test_explain_names_the_section_in_every_form(
    output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """J31: rich takes `[jmsjca]` in a table for a style and would swallow it."""
    monkeypatch.setenv("AIRFLOW__JMSJCA__IDLE_TIMEOUT", "45")
    run("explain", "--only-set", "-o", output)
    assert "[jmsjca]: idle_timeout" in capsys.readouterr().out

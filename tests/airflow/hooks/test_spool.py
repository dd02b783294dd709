"""Where the spool is, and with whose credentials."""

from __future__ import annotations

import json

import pytest

from airflow_provider_jmsjca import ConfigurationError, JmsError, JmsMessage
from tests.internals.hooks import spark_properties, spool_path, spool_roots, store_environment
from tests.internals.spool import seal_message


def connect(monkeypatch: pytest.MonkeyPatch, **fields: object) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(fields))


def test_the_connection_has_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(
        monkeypatch,
        conn_type="aws",
        login="key",
        password="geheim",
        extra={"region_name": "eu-central-1", "endpoint_url": "http://minio:9000"},
    )
    spool = spool_path("s3://store@bucket/jms/spool")
    assert str(spool) == "s3://bucket/jms/spool"
    assert store_environment(spool) == {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "geheim",
        "AWS_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": "http://minio:9000",
    }
    assert spark_properties(spool) == {
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.endpoint.region": "eu-central-1",
    }
    with pytest.raises(ConfigurationError, match="its readers have no Airflow connection"):
        seal_message(spool, JmsMessage.text("x"))


def test_messages_are_read_from_the_spools_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, conn_type="aws", login="key", password="geheim")
    monkeypatch.setenv("AIRFLOW__JMSJCA__SPOOL_PATH", "/data/spool")
    assert [str(each) for each in spool_roots()] == ["/data/spool"]
    monkeypatch.setenv("AIRFLOW__JMSJCA__SPOOL_ROOTS", "s3://store@bucket/spool, file:///a%20b,\n/data/c,")
    assert [str(each) for each in spool_roots()] == ["/data/spool", "s3://bucket/spool", "/a b", "/data/c"]


def test_other_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(
        monkeypatch, conn_type="google_cloud_platform", extra={"keyfile_dict": {"type": "service_account"}}
    )
    spool = spool_path("gs://store@bucket/spool")
    assert store_environment(spool) == {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"type": "service_account"}'}
    connect(monkeypatch, conn_type="wasb", login="account", password="key")
    spool = spool_path("abfs://store@container/spool")
    assert str(spool) == "abfs://container@account.dfs.core.windows.net/spool"
    assert store_environment(spool) == {
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ACCOUNT_KEY": "key",
    }


def test_a_connection_to_hdfs(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(
        monkeypatch, conn_type="webhdfs", host="nn1,nn2", login="jms", extra={"delegation_token": "geheim"}
    )
    spool = spool_path("hdfs://store@nn.example.com:8020/spool")
    assert str(spool) == "hdfs://nn.example.com:8020/spool"
    assert store_environment(spool) == {
        "WEBHDFS_URL": "http://nn1:9870,http://nn2:9870",
        "HADOOP_USER_NAME": "jms",
        "WEBHDFS_DELEGATION_TOKEN": "geheim",
    }
    connect(monkeypatch, conn_type="webhdfs", host="nn1", port=9871, extra={"use_ssl": True})
    assert store_environment(spool_path("hdfs://store@nn/spool")) == {"WEBHDFS_URL": "https://nn1:9871"}
    assert spark_properties(spool_path("hdfs://store@nn/spool")) == {
        "spark.yarn.appMasterEnv.WEBHDFS_URL": "https://nn1:9871",
        "spark.kubernetes.driverEnv.WEBHDFS_URL": "https://nn1:9871",
    }


def test_a_bucket_s_name_may_have_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, conn_type="aws", login="key", password="geheim")
    spool = spool_path("s3://store@my.bucket/spool")
    assert str(spool) == "s3://my.bucket/spool"
    assert store_environment(spool)["AWS_ACCESS_KEY_ID"] == "key"


def test_without_a_connection_the_environment_has_them() -> None:
    for text in (
        "s3://bucket/spool",
        "gs://bucket/spool",
        "abfs://c@account.dfs.core.windows.net/spool",
        "hdfs://nn:8020/spool",
    ):
        assert str(spool_path(text)) == text
        assert store_environment(spool_path(text)) == {}


def test_what_a_connection_can_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="connection 'nowhere' is not defined in Airflow"):
        spool_path("s3://nowhere@bucket/spool")
    connect(monkeypatch, conn_type="aws", extra={"role_arn": "arn:x"})
    with pytest.raises(
        ConfigurationError, match="connection 'store': a spool can't use role_arn of its extra"
    ):
        spool_path("s3://store@bucket/spool")
    connect(monkeypatch, conn_type="webhdfs", host="gateway", login="jms", password="geheim")
    with pytest.raises(ConfigurationError, match="Gateways such as HttpFS and Knox aren't supported"):
        spool_path("hdfs://store@nn/spool")
    connect(monkeypatch, conn_type="wasb", password="key")
    with pytest.raises(ConfigurationError, match="expected the storage account's name as its login"):
        spool_path("abfs://store@container/spool")


@pytest.mark.parametrize("text", ["hdfs:///x", "s3://", "s3://bucket/a?b", "ftp://x/y"])
def test_other_schemes_are_refused(text: str) -> None:
    with pytest.raises(JmsError, match=r"spool_path is .*other stores are not supported"):
        spool_path(text)

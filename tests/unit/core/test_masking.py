from __future__ import annotations

import time

import pytest

from airflow_provider_jmsjca.core.masking import masked_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stomp://me:s3cret@host/x?password=p;q&y=1", "stomp://***@host/x?password=***&y=1"),
        ("stomp://host?trust.store-password = abc, rest", "stomp://host?trust.store-password = ***, rest"),
        ("options: password: x; next", "options: password: ***; next"),
        ("TOKEN=a b", "TOKEN=*** b"),
        ("password= ", "password= "),
        ("{'password': 's3cret', 'port': 5}", "{'password': ***, 'port': 5}"),
        ('{"user": "me", "Passwd" : "two words"}', '{"user": "me", "Passwd" : ***}'),
        ("password='two words' host=db", "password=*** host=db"),
        ("password='s3cret", "password=***"),
        ("no secret here: a=b", "no secret here: a=b"),
        ("can't connect to postgresql://app:aB/cD9@db:5432/x", "can't connect to postgresql://***@db:5432/x"),
        ("stomp://app:p?q@h1:1,stomp://you:pa@ss/w@h2:2/x", "stomp://***@h1:1,stomp://***@h2:2/x"),
        ("stomp://app:pa ss@h", "stomp://***@h"),
        ("stomp://app:a,b/c@h and x@y", "stomp://***@h and x@y"),
        ("http://h:80/x, mail a@b", "http://h:80/x, mail a@b"),
    ],
)
def test_what_is_masked(text: str, expected: str) -> None:
    assert masked_text(text) == expected


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "token",
        "token ",
        "a.token ",
        "//a",
        "//a:",
        "//a:@",
        "://a:/",
        "//@",
        "token=;",
        "a:",
        "password",
        "token='",
        'token="',
    ],
)
def test_a_long_text_takes_time_in_proportion(piece: str) -> None:
    began = time.process_time()
    masked_text(piece * 20_000)
    masked_text(piece + " " * 100_000)
    assert (
        time.process_time() - began < 5
    )  # 2,000 letters took half a second where each was tried from each place

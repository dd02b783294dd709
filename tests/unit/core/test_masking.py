from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.masking import mask_values, masked_text
from tests.pace import at_most


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
        ("https://h:80/users/me%40example.com", "https://h:80/users/me%40example.com"),
        # names
        ("api_key=abc apikey: def", "api_key=*** apikey: ***"),
        ("signal=9, signature: (a, b), key=x", "signal=9, signature: (a, b), key=x"),
        ("https://a.example/c?sv=1&sig=ab%3D&se=2", "https://a.example/c?sv=1&sig=***&se=2"),
        ("AccountName=a;AccountKey=ab==", "AccountName=a;AccountKey=***"),
        ("?X-Amz-Signature=abc&x=1", "?X-Amz-Signature=***&x=1"),
        # headers
        ("X-Api-Key: abc\nHost: h", "X-Api-Key: ***\nHost: h"),
        ("Authorization: Bearer abc.def\nHost: h", "Authorization: ***\nHost: h"),
        ('Proxy-Authorization: Digest username="me", response="a"', "Proxy-Authorization: ***"),
        ("{'Authorization': 'Basic bWU6', 'Host': 'h'}", "{'Authorization': ***, 'Host': 'h'}"),
        ("('x', 'Bearer abcdefgh')", "('x', 'Bearer ***')"),
        ("the bearer of this", "the bearer of this"),
        # XML
        ("<password>a b</password><x>1</x>", "<password>***</password><x>1</x>"),
        ("<n:password a='1'><![CDATA[a<b]]></n:password>c", "<n:password a='1'>***</n:password>c"),
        ('<entry key="password">a b</entry>', '<entry key="password">***</entry>'),
        ('<property name="password" value="a b"/>', '<property name="password" value=***>'),
        ("<password/>a", "<password/>a"),
        # on the following line
        ("password:\n  abc\nx: 1", "password:\n  ***\nx: 1"),
        ("<password>\n  abc\n</password>", "<password>***</password>"),
        ("password: |-\n  abc\n  def\nx: 1", "password: ***\nx: 1"),
        # percent-encoded
        ("stomp://h?pass%77ord=abc&x=1", "stomp://h?pass%77ord=***&x=1"),
        ("stomp://h?pass%2577ord=abc&x=1", "stomp://h?pass%2577ord=***&x=1"),
        ("?to=http%3A%2F%2Fh%3Fpassword%3Da%26b&x=1", "?to=http%3A%2F%2Fh%3Fpassword%3D***&x=1"),
        # quoted
        ('password="a\\"b c" d', "password=*** d"),
        ('{\\"password\\": \\"a b\\", \\"x\\": 1}', '{\\"password\\": ***, \\"x\\": 1}'),
        # what a producer puts in front doesn't uncover what follows
        ('token=" password="a b c"', "token=***"),
        ("password=a,b&c d", "password=*** d"),
        ("stomp://h1:1?password=a,stomp://h2:2", "stomp://h1:1?password=***,stomp://h2:2"),
    ],
)
def test_what_is_masked(text: str, expected: str) -> None:
    assert masked_text(text) == expected


FILLERS = ["x", "x ", "a.b: 1, ", "/", "\u00e4%20"]
FORMS = [
    "stomp://me:{}@h",
    "stomp://h?password={}&x=1",
    "stomp://h?pass%77ord={}&x=1",
    "to=http%3A%2F%2Fh%3Fpassword%3D{}",
    " password={}",
    ' "passwd": "{}"',
    " {{'token': '{}'}}",
    " password:\n  {}",
    " password: >\n  {}",
    " api_key={}",
    " x-api-key: {}",
    " Authorization: Bearer {}",
    " 'Bearer {}'",
    " AccountKey={};x=1",
    "?a=1&sig={}",
    "<password>{}</password>",
    "<a:password b='c'>{}</a:password>",
    '<property name="password" value="{}"/>',
]
APART = 12  # the forms begin at different places, so that each place has one or two of them


@pytest.mark.parametrize("number", range(len(FORMS)))
def test_a_secret_is_masked_at_each_place_of_a_long_line(number: int) -> None:
    secret = "Gehe1m.0123456789"
    for place in {*range(number % APART, 3000, APART), *range(978, 1003), 2999}:
        filler = FILLERS[(place // APART + number) % len(FILLERS)]
        before = (filler * (place // len(filler) + 1))[:place]
        shown = masked_text(before + FORMS[number].format(secret) + (" " + filler * 3000)[: 3000 - place])
        assert "Gehe1m" not in shown, (place, shown[max(0, place - 20) :][:80])
        assert "0123" not in shown


@given(st.text("token=:\"'<>/@% \n|\\&;,5", max_size=60), st.text("x =\"'<>&;,@\n|", max_size=20))
def test_what_stands_around_a_secret_does_not_uncover_it(before: str, behind: str) -> None:
    """A producer chooses what an exception quotes in front of a password, and behind it."""
    text = f"{before} password='Gehe1m.0123' {behind}"
    assert "0123" not in masked_text(text)


@pytest.mark.parametrize(
    "piece",
    [
        "a", "token", "token ", "a.token ", "//a", "//a:", "//a:@", "://a:/", "//@", "token=;", "a:",
        "password",
        "token='", 'token="', "token=", "token=,", "token=&", "<token>", "<token>x</", "<token x='",
        'token=\\"',
        "token='\\'", "%74oken=", "%2574oken=", "bearer ", "token:\n", "token: |\n ", "token: >\n  a\n",
        "authorization:", "%", "%4", "token=\\",
    ],
)  # fmt: skip
def test_a_long_text_takes_time_in_proportion(piece: str) -> None:
    began = time.process_time()
    masked_text(piece * 40_000)
    masked_text(piece + " " * 100_000)
    # Each takes below 0.7 s. Where a text is looked through from every place in it, it takes more than 15 s.
    assert time.process_time() - began < at_most(3)


def test_known_secrets_are_blotted_out_of_urls_too() -> None:
    text = "x p@ss/ö y stomp://u:p%40ss%2F%C3%B6@h z p%40ss/%C3%B6"
    assert mask_values(text, ["p@ss/ö", ""]) == "x *** y stomp://u:***@h z ***"

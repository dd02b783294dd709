"""Pages of Google Cloud Storage and Azure, and the names that no file of the spool has."""

from __future__ import annotations

import logging
import re
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_jmsjca.spool.files.listing import SkippedNames, is_file_name, valid_page

GOOGLE = (
    "<ListBucketResult><Prefix>spool/</Prefix>{}<NextContinuationToken>spool//x</NextContinuationToken>"
    "</ListBucketResult>"
)
AZURE = (
    '\ufeff<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Prefix>spool/</Prefix><Blobs>{}</Blobs>'
    "<NextMarker>spool//x</NextMarker></EnumerationResults>"
)


def blob(name: str, attributes: str = "") -> str:
    return f"<Blob><Name{attributes}>{name}</Name><Properties><Etag>1</Etag></Properties></Blob>"


@pytest.mark.parametrize(
    ("page", "entries", "kept", "skipped"),
    [
        (
            GOOGLE,
            [
                "<Contents><Key>spool/a</Key><Size>1</Size></Contents>",
                "<Contents><Key>spool//a</Key><Size>1</Size></Contents>",
                "<CommonPrefixes><Prefix>spool/b/</Prefix></CommonPrefixes>",
                "<CommonPrefixes><Prefix>spool/../</Prefix></CommonPrefixes>",
                "<CommonPrefixes><Prefix>spool//</Prefix></CommonPrefixes>",
            ],
            [0, 2],
            ["spool//a", "spool/../", "spool//"],
        ),
        (
            AZURE,
            [
                blob("spool/a &amp;&#x2F;b"),
                blob("spool/a&#1;"),
                blob("spool/&#x2E;/a"),
                blob("spool/a\x01"),
                blob("spool/a%01", ' Encoded="true"'),
                blob("spool/a&amp;#1;"),
                blob("spool/&#1114112;"),
                "<BlobPrefix><Name>spool/b/</Name></BlobPrefix>",
                "<BlobPrefix><Name>spool/./</Name></BlobPrefix>",
            ],
            [0, 5, 7],
            ["spool/a\x01", "spool/./a", "spool/a\x01", "spool/a%01", "spool/\0", "spool/./"],
        ),
        (GOOGLE, ["<Contents><Size>1</Size></Contents>", "<Contents><Key>a//b</Key>"], [0, 1], []),
    ],
)
def test_entries_of_other_names_are_left_out(
    page: str, entries: list[str], kept: list[int], skipped: list[str]
) -> None:
    found: list[str] = []
    written = valid_page(page.format("".join(entries)).encode(), found.append)
    assert written.decode() == page.format("".join(entries[each] for each in kept))
    assert found == skipped


@given(
    st.lists(st.text("a/.\x01\x7f&<>;#x1\u00e9", min_size=1, max_size=12)), st.sampled_from([GOOGLE, AZURE])
)
def test_any_names(names: list[str], page: str) -> None:
    element = "<Contents><Key>{}</Key></Contents>" if page is GOOGLE else "<Blob><Name>{}</Name></Blob>"
    found: list[str] = []
    written = valid_page(
        page.format("".join(element.format(escape(each)) for each in names)).encode(), found.append
    )
    sound = [each for each in names if is_file_name(each.removesuffix("/"))]
    assert written.decode() == page.format("".join(element.format(escape(each)) for each in sound))
    assert found == [each for each in names if each not in sound]


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("a/b c/..d/e.", True),
        ("", False),
        ("a//b", False),
        ("/a", False),
        ("a/", False),
        ("./a", False),
        ("a/..", False),
        ("a\x1fb", False),
        ("a\x7f", False),
        ("gr\u00f6\u00dfe", True),
    ],
)
def test_names_of_files(path: str, is_one: bool) -> None:
    assert is_file_name(path) is is_one


def test_each_name_is_logged_once_and_at_most_1000_are(caplog: pytest.LogCaptureFixture) -> None:
    skipped = SkippedNames("gs://bucket")
    with caplog.at_level(logging.WARNING):
        skipped.add("a\x01\nb")
        skipped.add("a\x01\nb")
        (message,) = caplog.messages
        assert re.fullmatch(r"gs://bucket: skipping 'a\\x01\\nb' and everything .*", message)
        for number in range(2_000):
            skipped.add(f"{number}//")
    assert len(caplog.messages) == 1_000

"""Packed weights on disk: what is found, what is refused and why, what makes room, and what two processes do at once."""

import dataclasses
import os
import time
from pathlib import Path

import pytest

from tuili.backends.cpu import pack_cache, pack_file
from tuili.backends.cpu.pack_cache import PackCache
from tuili.backends.cpu.pack_file import PAGE, PackKey, PackProblem, pack_size, read_header
from tuili.errors import CacheError
from tuili.observe.progress import say_nothing
from tuili.weights.content import content_of

KEY = PackKey(content="a file", recipe="r", matrices="m", isa="avx2", layout="l", numerics=1)
DATA = bytes(range(256)) * 40
DIGESTS = (7, 2**64 - 1)
LARGE = 10**9
BIG = DATA * 100  # so that what lies beside the weights does not count


def save(cache: PackCache, key: PackKey = KEY, data: bytes = DATA) -> Path:
    return cache.save(key, memoryview(data), DIGESTS, lambda done, total: say_nothing("", done, total))


@pytest.fixture
def cache(tmp_path: Path) -> PackCache:
    return PackCache(tmp_path / "pack", write=True, max_bytes=LARGE)


def test_what_was_saved_is_found(cache: PackCache) -> None:
    assert cache.find(KEY) is None
    path = save(cache)
    header = cache.find(KEY)
    assert header is not None and path == cache.path(KEY)
    assert (header.key, header.digests, header.num_bytes) == (KEY, DIGESTS, len(DATA))
    assert header.offset % PAGE == 0
    stored = path.read_bytes()
    assert stored[header.offset :] == DATA + bytes(PAGE)
    assert len(stored) <= pack_size(len(DATA))
    assert [file.name for file in cache.folder.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"content": "another file"}, "another file"),
        ({"recipe": "s"}, "in another way"),
        ({"matrices": "n"}, "another set"),
        ({"isa": "avx512"}, "for avx512, not for avx2"),
        ({"layout": "k"}, "layout"),
        ({"numerics": 7}, "numerics version 7; this is version 1"),
        ({"rank": 1, "world": 2}, "for rank 1, not for rank 0 and for 2 ranks, not for 1"),
    ],
)
def test_a_pack_for_something_else_is_named(cache: PackCache, change: dict[str, str | int], words: str) -> None:
    other = dataclasses.replace(KEY, **change)  # type: ignore[arg-type]
    save(cache, other).rename(cache.path(KEY))
    with pytest.raises(PackProblem, match=words):
        cache.find(KEY)


def test_levels_ranks_and_files_have_their_own_packs() -> None:
    changes: list[dict[str, str | int]] = [{}, {"isa": "avx512"}, {"rank": 1, "world": 2}, {"world": 2}, {"content": "b"}]
    assert len({dataclasses.replace(KEY, **change).file_name for change in changes}) == len(changes)  # type: ignore[arg-type]
    # versions share one place, so that an old pack is found and replaced
    assert dataclasses.replace(KEY, numerics=9, layout="k", recipe="s").file_name == KEY.file_name


def test_every_damaged_byte_of_the_header_is_seen(cache: PackCache) -> None:
    path = save(cache)
    whole = path.read_bytes()
    used = 48 + int.from_bytes(whole[8:16], "little")
    for at in range(0, used, 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        with pytest.raises(PackProblem):
            cache.find(KEY)


@pytest.mark.parametrize("size", [0, 7, 47, 60, 4096, -1])
def test_a_pack_that_was_cut_off_is_seen(cache: PackCache, size: int) -> None:
    path = save(cache)
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    with pytest.raises(PackProblem):
        cache.find(KEY)
    path.write_bytes(whole + b"x")
    with pytest.raises(PackProblem, match="bytes instead of"):
        cache.find(KEY)


def test_a_pack_that_cannot_be_read_is_a_problem_in_words(cache: PackCache) -> None:
    cache.path(KEY).mkdir(parents=True)
    with pytest.raises(PackProblem, match="cannot be read"):
        cache.find(KEY)


def test_the_one_used_longest_ago_makes_room(tmp_path: Path) -> None:
    small = PackCache(tmp_path, write=True, max_bytes=int(pack_size(len(BIG)) * 2.5))
    keys = [dataclasses.replace(KEY, content=name) for name in "abc"]
    for age, key in zip((30, 20), keys[:2], strict=True):
        then = time.time() - age
        os.utime(save(small, key, BIG), (then, then))
    small.touch(keys[0])  # now b is the older one
    save(small, keys[2], BIG)
    assert [small.path(key).exists() for key in keys] == [True, False, True]
    assert small.usage()[0] == 2


def test_replacing_a_pack_evicts_no_other(tmp_path: Path) -> None:
    small = PackCache(tmp_path, write=True, max_bytes=int(pack_size(len(BIG)) * 2.5))
    other = dataclasses.replace(KEY, content="b")
    save(small, other, BIG)
    save(small, data=BIG)
    save(small, data=BIG[::-1])
    assert small.path(other).exists() and small.usage()[0] == 2


def test_a_pack_larger_than_the_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="pack-cache-size"):
        save(PackCache(tmp_path, write=True, max_bytes=len(DATA)))


def test_a_full_disk_is_said_before_anything_is_lost(cache: PackCache, monkeypatch: pytest.MonkeyPatch) -> None:
    other = save(cache, dataclasses.replace(KEY, content="b"))
    monkeypatch.setattr(PackCache, "_free", lambda self: 1000)  # type: ignore[misc]
    with pytest.raises(CacheError, match=r"no room for .* TUILI_HOME"):
        save(cache)
    assert list(cache.folder.iterdir()) == [other]


def test_a_disk_that_fills_while_writing_leaves_nothing(cache: PackCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(file: int, data: memoryview) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pack_file, "_write", write)
    with pytest.raises(CacheError, match="no room"):
        save(cache)
    assert list(cache.folder.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot be kept"):
        save(PackCache(tmp_path / "file" / "pack", write=True, max_bytes=LARGE))


def test_two_writers_and_what_a_killed_one_left(cache: PackCache) -> None:
    """While a pack is written, another process may write the same one; only files that nobody is writing are cleared away."""
    cache.folder.mkdir()
    old = time.time() - 3600
    abandoned = cache.folder / ".killed.tmp"
    abandoned.write_bytes(b"half")
    os.utime(abandoned, (old, old))
    with cache._new_file() as (file, temporary):  # pyright: ignore[reportPrivateUsage]
        os.utime(temporary, (old, old))
        save(cache)
        assert temporary.exists() and not abandoned.exists()
        pack_file.write_pack(file, KEY, memoryview(DATA), DIGESTS, lambda done, total: None)
        os.replace(temporary, cache.path(KEY))
    header = cache.find(KEY)
    assert header is not None and header.num_bytes == len(DATA)


def test_a_pack_that_vanishes_meanwhile_does_no_harm(cache: PackCache, monkeypatch: pytest.MonkeyPatch) -> None:
    save(cache)
    cache.path(KEY).unlink()
    cache.touch(KEY)
    assert pack_cache._delete(cache.path(KEY)) == 0  # pyright: ignore[reportPrivateUsage]
    assert cache.usage() == (0, 0)


def test_removing_takes_all_levels_of_one_file(cache: PackCache) -> None:
    packs = [save(cache, dataclasses.replace(KEY, isa=isa)) for isa in ("avx2", "avx512")]
    kept = save(cache, dataclasses.replace(KEY, content="another"))
    freed = sum(path.stat().st_size for path in packs)
    assert cache.remove(KEY.content) == freed
    assert list(cache.folder.iterdir()) == [kept]
    assert read_header(kept).key.content == "another"


def test_content_changes_with_the_file(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(bytes(1_000_000))
    first = content_of([model])
    assert content_of([model]) == first
    status = model.stat()
    with model.open("r+b") as file:  # one byte of a sampled block, and the old time
        file.seek(status.st_size // 64 * 5)
        file.write(b"x")
    os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert content_of([model]) != first
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(model.read_bytes())
    assert content_of([copy]) != content_of([model])
    assert content_of([copy, model]) != content_of([model, copy])


def test_a_blob_keeps_its_name_wherever_it_lies(tmp_path: Path) -> None:
    """A model that is fetched again is the same model."""
    found: list[str] = []
    for home in ("one", "two"):
        blob = tmp_path / home / "blobs" / f"sha256-{'ab' * 32}"
        blob.parent.mkdir(parents=True)
        blob.write_bytes(b"weights" * 1000)
        found.append(content_of([blob]))
    assert found[0] == found[1] and "ab" * 32 in found[0]

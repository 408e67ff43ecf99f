"""Flag, environment, file, default: in that order, and a bad value names where it came from."""

from pathlib import Path

import pytest

from tuili.config.sources import Settings, hf_endpoint, home_dir, parse_cpu_list, parse_size, read_settings
from tuili.errors import ConfigError


def settings(environment: dict[str, str] | None = None, file: dict[str, object] | None = None) -> Settings:
    return Settings(environment or {}, file or {}, Path("/home/me/config.toml"))


def test_order_of_precedence() -> None:
    both = settings({"TUILI_PORT": "2"}, {"port": 3})
    assert both.integer("port", 1) == 1
    assert both.integer("port") == 2
    assert settings({}, {"port": 3}).integer("port") == 3
    assert settings({"TUILI_PORT": ""}).integer("port") is None


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            settings({"TUILI_PORT": "x"}),
            "variable TUILI_PORT is 'x'; it has to be a whole number from 0 to 65535",
        ),
        (settings({}, {"port": 70000}), "port in /home/me/config.toml is 70000; it has to be"),
        (settings({}, {"port": True}), "port in /home/me/config.toml is True; it has to be"),
        (settings({}, {"port": [1]}), "port in /home/me/config.toml is"),
    ],
)
def test_bad_values_name_their_origin(where: Settings, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        where.integer("port", low=0, high=65535)
    assert message in str(caught.value)


def test_a_bad_flag_is_named_as_it_was_typed() -> None:
    with pytest.raises(ConfigError, match=r"--max-num-seqs is '0'; it has to be a whole number, at least 1"):
        settings().integer("max_num_seqs", 0)
    with pytest.raises(ConfigError, match=r"--isa is 'sse9'; it has to be one of generic, avx2"):
        settings().choice("isa", ("generic", "avx2"), "sse9")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("2000000", 2_000_000),
        ("512m", 512_000_000),
        ("512M", 512 * 1024**2),
        ("2G", 2 * 1024**3),
        ("1.5GiB", 3 * 1024**3 // 2),
        ("1 GB", 10**9),
        ("1gib", 1024**3),
        ("3kb", 3000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert settings({"TUILI_KV_CACHE_MEMORY_BYTES": text}).size("kv_cache_memory_bytes") == size


@pytest.mark.parametrize("text", ["", "G", "-1", "1x", "1e9", "one"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="512MiB"):
        settings().size("kv_cache_memory_bytes", text)


@pytest.mark.parametrize(("text", "cpus"), [("0", (0,)), ("0,2-3", (0, 2, 3)), (" 5 , 1", (5, 1)), ("4-4", (4,))])
def test_cpu_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus
    assert settings({"TUILI_CPU_LIST": text}).cpus("cpu_list") == cpus


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-2", "0,0", "0-2,1", "0;1", "99999"])
def test_bad_cpu_lists(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--cpu-list is .* such as 0,2-3"):
        settings().cpus("cpu_list", text)


def test_lists() -> None:
    assert settings({"TUILI_API_KEY": "a, b"}).texts("api_key") == ("a", "b")
    assert settings({}, {"api_key": ["a", "b"]}).texts("api_key") == ("a", "b")
    assert settings({"TUILI_API_KEY": "a"}).texts("api_key", ("c",)) == ("c",)
    assert settings().texts("api_key") == ()
    for bad in ([], [1], 5, ["a", ""]):
        if bad != []:
            with pytest.raises(ConfigError, match="list of non-empty texts"):
                settings({}, {"api_key": bad}).texts("api_key")


def test_a_secret_is_never_repeated_in_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        settings({"TUILI_API_KEY": "sk-secret,,"}).texts("api_key")
    assert "sk-secret" not in str(caught.value)


def test_the_file_is_read_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUILI_HOME", str(tmp_path))
    monkeypatch.delenv("TUILI_PORT", raising=False)
    assert home_dir() == tmp_path
    assert read_settings().integer("port") is None
    (tmp_path / "config.toml").write_text("port = 8001\n")
    assert read_settings().integer("port") == 8001
    (tmp_path / "config.toml").write_text("prot = 8001\n")
    with pytest.raises(ConfigError, match="'prot', which is no setting: did you mean port"):
        read_settings()
    (tmp_path / "config.toml").write_text("port = \n")
    with pytest.raises(ConfigError, match=r"cannot read .*config\.toml"):
        read_settings()


def test_without_tuili_home_the_platforms_folder_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TUILI_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert home_dir() == tmp_path / "tuili"


def test_the_hub_can_be_a_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert hf_endpoint(settings()) == "https://huggingface.co"
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example")
    assert hf_endpoint(settings()) == "https://mirror.example"
    assert hf_endpoint(settings({"TUILI_HF_ENDPOINT": "http://127.0.0.1:9"})) == "http://127.0.0.1:9"
    with pytest.raises(ConfigError, match="has to be an address"):
        hf_endpoint(settings({"TUILI_HF_ENDPOINT": "mirror.example"}))

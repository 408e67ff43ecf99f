"""Options become values with reasons; machine facts come from /proc and control groups of either version."""

from pathlib import Path

import pytest

from tuili.cache.plan import GroupShape, sequence_bytes, tokens_held
from tuili.config.machine import MachineFacts, cpu_model, last_level_cache_bytes, read_machine
from tuili.config.options import EngineOptions
from tuili.config.resolve import MAX_KV_BYTES, MIN_KV_BYTES, ModelFacts, ResolvedOptions, choose_threads, resolve
from tuili.errors import ConfigError

GIB = 2**30
LAPTOP = MachineFacts(
    num_cpus=8, num_cores=4, cpu_quota=None, available_memory=12 * GIB, total_memory=16 * GIB, memory_limit=None
)


def model(*groups: GroupShape, context: int = 8192, memory: int = GIB) -> ModelFacts:
    shapes = groups or (GroupShape(368_640),)
    return ModelFacts(
        context,
        memory,
        lambda tokens, chunk: sequence_bytes(shapes, tokens, chunk=chunk, block_size=16),
        lambda budget, limit, chunk: tokens_held(shapes, budget, limit=limit, chunk=chunk, block_size=16),
    )


def why(resolved: ResolvedOptions, name: str) -> str:
    return next(reason for setting, _, reason in resolved.reasons if setting == name)


def test_everything_automatic_is_explained() -> None:
    resolved = resolve(EngineOptions(), model(), LAPTOP)
    assert resolved.threads == 4
    assert resolved.max_model_len == 8192
    assert resolved.max_num_batched_tokens == 512
    assert resolved.max_num_seqs == 64
    assert resolved.kv_cache_memory_bytes == MAX_KV_BYTES
    assert not resolved.warnings
    explained = {name: value for name, value, reason in resolved.reasons if reason}
    for name in ("threads", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory_bytes"):
        assert explained[name] == str(getattr(resolved, name))


def test_what_was_asked_is_kept() -> None:
    asked = EngineOptions(
        threads=3,
        max_model_len=1000,
        max_num_seqs=5,
        max_num_batched_tokens=77,
        kv_cache_memory_bytes=10**9,
        max_waiting_requests=0,
    )
    resolved = resolve(asked, model(), LAPTOP)
    for name in ("threads", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory_bytes"):
        assert getattr(resolved, name) == getattr(asked, name)
        assert why(resolved, name) == "as asked"
    assert resolved.max_waiting_requests == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threads", 0),
        ("max_model_len", -1),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", -5),
        ("kv_cache_memory_bytes", 0),
        ("max_waiting_requests", -1),
    ],
)
def test_values_out_of_range_are_named(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{field} is {value}"):
        resolve(EngineOptions(**{field: value}), model(), LAPTOP)
    with pytest.raises(ConfigError, match=f"{field} is 'some'; it has to be a whole number"):
        resolve(EngineOptions(**{field: "some"}), model(), LAPTOP)


def test_a_context_beyond_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"9000.*8192"):
        resolve(EngineOptions(max_model_len=9000), model(), LAPTOP)


def test_the_context_follows_what_memory_holds() -> None:
    block = 368_640
    resolved = resolve(EngineOptions(kv_cache_memory_bytes=10 * block), model(), LAPTOP)
    assert resolved.max_model_len == 160
    assert "holds" in why(resolved, "max_model_len")


def test_a_context_that_was_asked_for_and_does_not_fit_is_a_warning() -> None:
    """D-SCHED-1: a pool of 20 blocks and a context of 4096 may go together; it is said at the start."""
    asked = EngineOptions(kv_cache_memory_bytes=20 * 368_640, max_model_len=4096)
    resolved = resolve(asked, model(), LAPTOP)
    assert resolved.max_model_len == 4096
    (warning,) = resolved.warnings
    assert "320 tokens" in warning and "4096" in warning


def test_a_budget_below_one_block_gives_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"1000.*368640"):
        resolve(EngineOptions(kv_cache_memory_bytes=1000), model(), LAPTOP)


def test_the_automatic_budget_is_never_more_than_could_be_used() -> None:
    resolved = resolve(EngineOptions(max_num_seqs=1, max_model_len=160), model(), LAPTOP)
    assert resolved.kv_cache_memory_bytes == 10 * 368_640
    small = MachineFacts(2, 2, None, available_memory=GIB, total_memory=GIB, memory_limit=None)
    tight = resolve(EngineOptions(), model(), small)
    assert tight.kv_cache_memory_bytes == MIN_KV_BYTES
    assert tight.max_model_len < 8192
    assert any("memory" in warning for warning in tight.warnings)


def test_windows_let_a_long_context_fit() -> None:
    budget = EngineOptions(kv_cache_memory_bytes=50 * 2**20)
    full = resolve(budget, model(GroupShape(100_000), GroupShape(500_000)), LAPTOP)
    windowed = resolve(budget, model(GroupShape(100_000), GroupShape(500_000, window=128)), LAPTOP)
    assert windowed.max_model_len > 2 * full.max_model_len


@pytest.mark.parametrize(
    ("cpus", "cores", "quota", "threads"),
    [(2, 1, None, 2), (4, 4, None, 4), (16, 8, None, 8), (16, 8, 3.5, 3), (8, 8, 0.5, 1), (1, 1, None, 1)],
)
def test_threads_follow_affinity_cores_and_quota(cpus: int, cores: int, quota: float | None, threads: int) -> None:
    machine = MachineFacts(cpus, cores, quota, GIB, GIB, None)
    assert choose_threads(EngineOptions(), machine)[0] == threads
    assert choose_threads(EngineOptions(threads=7), machine) == (7, "as asked")


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_control_groups_version_2(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal:       16000000 kB\nMemAvailable:    9000000 kB\n")
    write(tmp_path, "proc/self/cgroup", "0::/user.slice/box\n")
    write(tmp_path, "sys/fs/cgroup/user.slice/box/cpu.max", "max 100000\n")
    write(tmp_path, "sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n")
    write(tmp_path, "sys/fs/cgroup/user.slice/box/memory.max", str(2 * GIB))
    write(tmp_path, "sys/fs/cgroup/user.slice/box/memory.current", str(GIB))
    write(tmp_path, "sys/fs/cgroup/user.slice/box/memory.stat", f"anon 5\ninactive_file {GIB // 2}\n")
    facts = read_machine(tmp_path)
    assert facts.cpu_quota == 1.5
    assert facts.memory_limit == 2 * GIB
    assert facts.available_memory == 2 * GIB - GIB // 2
    assert facts.total_memory == 16_000_000 * 1024


def test_control_groups_version_1(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal:       16000000 kB\nMemAvailable:    9000000 kB\n")
    write(tmp_path, "proc/self/cgroup", "4:memory:/box\n3:cpu,cpuacct:/box\n1:name=systemd:/x\n")
    write(tmp_path, "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(tmp_path, "sys/fs/cgroup/memory/box/memory.limit_in_bytes", str(GIB))
    write(tmp_path, "sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1000")
    facts = read_machine(tmp_path)
    assert facts.cpu_quota == 2.0
    assert facts.memory_limit == GIB
    assert facts.available_memory == GIB - 1000


def test_no_control_groups_at_all(tmp_path: Path) -> None:
    facts = read_machine(tmp_path)
    assert facts.cpu_quota is None and facts.memory_limit is None
    assert facts.total_memory > 0 and facts.available_memory > 0
    assert 1 <= facts.num_cores <= facts.num_cpus


def test_siblings_of_a_core_count_once(tmp_path: Path) -> None:
    for cpu in range(256):
        path = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        write(tmp_path, path, f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}\n")
    facts = read_machine(tmp_path)
    assert facts.num_cores <= (facts.num_cpus + 2) // 2


def test_caches_that_processors_share_count_once(tmp_path: Path) -> None:
    assert last_level_cache_bytes(tmp_path) is None
    for cpu in range(256):
        folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index3"
        write(tmp_path, f"{folder}/size", "32768K\n")
        write(tmp_path, f"{folder}/shared_cpu_list", "0-255\n")
    assert last_level_cache_bytes(tmp_path) == 32 * 2**20


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    assert cpu_model(tmp_path)
    write(tmp_path, "proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast CPU @ 5 GHz\n")
    assert cpu_model(tmp_path) == "Fast CPU @ 5 GHz"


def test_threads_follow_a_list_of_cpus() -> None:
    assert choose_threads(EngineOptions(cpu_list=(0, 2, 3)), LAPTOP) == (3, "one for each CPU of cpu_list")
    assert choose_threads(EngineOptions(cpu_list=(0, 2, 3), threads=2), LAPTOP) == (2, "as asked")
    with pytest.raises(ConfigError, match="threads is 3, but cpu_list has 2 CPUs"):
        choose_threads(EngineOptions(cpu_list=(0, 1), threads=3), LAPTOP)
    for bad in ((), (0, 0), (-1,), "01"):
        with pytest.raises(ConfigError, match="each once, such as"):
            choose_threads(EngineOptions(cpu_list=bad), LAPTOP)  # type: ignore[arg-type]

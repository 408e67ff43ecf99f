"""Sampling in NumPy: the definition of what ``SamplingBatch`` asks for, one row at a time.

Order: log-probabilities of the raw logits; then the mask, bias and allowed ids, repetition penalty, presence and frequency
penalties; greedy (the lowest id wins a tie) at temperature 0 or top_p 0; otherwise temperature, top-k, top-p, min-p, and the
largest of logit + Gumbel noise. The noise of a token depends on (seed, sequence, position, token id) alone.
"""

import numpy as np
import numpy.typing as npt

from tuili.backends.base import F32, I32, SamplingBatch, StepResult

F64 = npt.NDArray[np.float64]
U32 = npt.NDArray[np.uint32]

#: Returned instead of a token when a row of logits holds NaN or +infinity, or no token is left to choose from.
NO_TOKEN = -1


def mix64(x: int) -> int:
    """The finaliser of splitmix64."""
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) % 2**64
    return x ^ x >> 31


def mix32(h: U32) -> U32:
    """The finaliser of MurmurHash3, on whole arrays; uint32 arithmetic wraps."""
    h = (h ^ h >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    h = (h ^ h >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return h ^ h >> np.uint32(16)


def gumbel_noise(seed: int, sequence: int, position: int, token_ids: npt.NDArray[np.int64]) -> F64:
    """One standard Gumbel number a token id. The same numbers as native/sample/noise.h, which documents them."""
    counter = (sequence % 2**32) << 32 | position % 2**32
    key = mix64(mix64((seed + 0x9E3779B97F4A7C15) % 2**64) ^ counter)
    bits = mix32(mix32(token_ids.astype(np.uint32) ^ np.uint32(key % 2**32)) ^ np.uint32(key >> 32))
    uniform = ((bits >> np.uint32(1)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-31)
    uniform = np.minimum(uniform, np.float32(1 - 2.0**-24))
    return -np.log(-np.log1p(-uniform.astype(np.float64)))


def log_softmax(logits: F32) -> F64:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def sample(logits: F32, batch: SamplingBatch) -> StepResult:
    """logits [R, vocab] -> one token, and the log-probabilities asked for, a row."""
    rows = logits.shape[0]
    widest = max(0, int(batch.num_logprobs.max(initial=0)))
    result = StepResult(
        token_ids=np.full(rows, NO_TOKEN, np.int32),
        logprobs=np.zeros(rows, np.float32),
        top_ids=np.full((rows, widest), -1, np.int32),
        top_logprobs=np.zeros((rows, widest), np.float32),
    )
    for row in range(rows):
        if np.isnan(logits[row]).any() or not np.isfinite(logits[row].max()):
            continue
        target = int(batch.target[row])
        token = target if target >= 0 else choose(logits[row], batch, row)
        result.token_ids[row] = token
        if token != NO_TOKEN and batch.num_logprobs[row] >= 0:
            _report(logits[row], token, int(batch.num_logprobs[row]), result, row)
    return result


def _report(logits: F32, token: int, count: int, result: StepResult, row: int) -> None:
    logprobs = log_softmax(logits)
    result.logprobs[row] = logprobs[token]
    best = np.argsort(-logits, kind="stable")[:count]
    result.top_ids[row, : len(best)] = best
    result.top_logprobs[row, : len(best)] = logprobs[best]


def choose(logits: F32, batch: SamplingBatch, row: int) -> int:
    """The token of one row, or NO_TOKEN when everything is banned."""
    adjusted = adjust(logits, batch, row)
    if not np.isfinite(adjusted.max()):
        return NO_TOKEN
    temperature, top_p = float(batch.temperature[row]), float(batch.top_p[row])
    if temperature == 0 or top_p == 0:
        return int(np.argmax(adjusted))
    scaled = (adjusted.astype(np.float64) - float(adjusted.max())) / temperature
    kept = keep(scaled, int(batch.top_k[row]), top_p, float(batch.min_p[row]))
    noise = gumbel_noise(int(batch.seed[row]), int(batch.sequence[row]), int(batch.position[row]), kept)
    return int(kept[np.argmax(scaled[kept] + noise)])


def adjust(logits: F32, batch: SamplingBatch, row: int) -> F32:
    """Mask, bias, allowed ids and penalties."""
    out = logits.copy()
    if batch.mask_index[row] >= 0:
        bits = np.unpackbits(batch.masks[batch.mask_index[row]].view(np.uint8), bitorder="little")[: len(out)]
        out[: len(bits)][bits == 0] = -np.inf
        out[len(bits) :] = -np.inf
    bias = slice(batch.bias_start[row], batch.bias_start[row + 1])
    out[batch.bias_ids[bias]] += batch.bias_values[bias]
    allowed = batch.allowed_ids[batch.allowed_start[row] : batch.allowed_start[row + 1]]
    if len(allowed):
        banned = np.ones(len(out), bool)
        banned[allowed] = False
        out[banned] = -np.inf
    return _penalise(out, batch, row)


def _penalise(out: F32, batch: SamplingBatch, row: int) -> F32:
    listed = slice(batch.penalty_start[row], batch.penalty_start[row + 1])
    ids, counts = batch.penalty_ids[listed], batch.penalty_counts[listed]
    repetition = batch.repetition_penalty[row]
    if repetition != 1:
        values = out[ids]
        out[ids] = np.where(values > 0, values / repetition, values * repetition)
    out[ids] -= batch.frequency_penalty[row] * counts.astype(np.float32)
    out[ids] -= np.where(counts > 0, batch.presence_penalty[row], np.float32(0))
    return out


def keep(scaled: F64, top_k: int, top_p: float, min_p: float) -> npt.NDArray[np.int64]:
    """Ids that survive top-k, then top-p (the smallest set of the likeliest whose probability reaches it), then min-p."""
    order = np.argsort(-scaled, kind="stable")
    order = order[np.isfinite(scaled[order])]
    if top_k > 0:
        order = order[:top_k]
    weights = np.exp(scaled[order] - scaled[order[0]])
    if top_p < 1:
        reached = np.cumsum(weights) / weights.sum() >= top_p
        count = int(np.argmax(reached)) + 1 if reached.any() else len(order)
        order, weights = order[:count], weights[:count]
    if min_p > 0:
        order = order[weights >= min_p * weights[0]]
    return order


def greedy(rows: int) -> SamplingBatch:
    """A batch that takes the likeliest token of every row and reports nothing else."""
    start = np.zeros(rows + 1, np.int32)
    zeros, ones = np.zeros(rows, np.float32), np.ones(rows, np.float32)
    ids: I32 = np.zeros(0, np.int32)
    integers = np.zeros(rows, np.int32)
    return SamplingBatch(
        temperature=zeros,
        top_k=integers,
        top_p=ones,
        min_p=zeros,
        repetition_penalty=ones,
        presence_penalty=zeros,
        frequency_penalty=zeros,
        seed=np.zeros(rows, np.uint64),
        sequence=integers,
        position=integers,
        num_logprobs=np.full(rows, -1, np.int32),
        target=np.full(rows, -1, np.int32),
        bias_start=start,
        bias_ids=ids,
        bias_values=np.zeros(0, np.float32),
        penalty_start=start,
        penalty_ids=ids,
        penalty_counts=ids,
        allowed_start=start,
        allowed_ids=ids,
        mask_index=np.full(rows, -1, np.int32),
        masks=np.zeros((0, 0), np.uint32),
    )

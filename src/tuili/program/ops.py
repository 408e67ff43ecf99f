"""The op table: every instruction a program may hold, and the tolerance each owns.

Rows. A value is a float32 matrix [rows, width]. ``rows`` is T (tokens of this step), R (rows that need an output) or a fixed
multiple of T (token × chosen expert). Widths are static. There is no run-time reshape or transpose; layouts are fixed per op.

============  =======================================================================================================
embed         weights: table [vocab, width]. out [T, width]; rows of ``token_ids``, or the step's override rows
linear        x [rows, K]; weights: one [N_i, K] per segment, optional bias [N_i] per segment. One output [rows, N_i] per
              segment; the segments share one (quantised) activation. ``biases``: tuple of bool, one a segment; the weight
              list holds, per segment, the matrix and then its bias if it has one. ``split``: None | "column" | "row"
rms_norm      x [rows, width]; weight [group]; normalises each run of ``group`` columns (group = width, or a head). ``eps``
layer_norm    likewise, with mean; weights: scale, and shift if ``shift``
rope          x [T, heads * head_dim]; rotates by position, halves of the rotary part paired (Hugging Face layout). ``rope``:
              RopeSpec; ``head_dim``; ``axis``
attention     q [T, num_heads * head_dim], k and v [T, num_kv_heads * head_dim]; writes k and v to the state, then attends.
              ``num_heads, num_kv_heads, head_dim, scale, softcap, window, causal``. out [T, num_heads * head_dim]
act_mul       gate, up -> act(gate) * up. ``act``: silu | gelu_tanh | gelu
add, scale    a + b; x * ``factor``
softcap       ``cap`` * tanh(x / cap)
moe_route     router logits [T, E] -> weights [T, top_k] (and expert ids, kept with the value). ``top_k, normalise, scoring``
moe_linear    x [T, K] or [T * top_k, K], routing [T, top_k]; weights: [E, N, K] (segments as in linear, without bias).
              out [T * top_k, N]: row t * top_k + j is token t under its j-th expert
combine       y [T * top_k, N], routing -> [T, N]: the sum over j in top-k order of weight_j * y_j
select_rows   x [T, width] -> [R, width]: the step's ``logit_rows``
split         x [rows, sum widths] -> one value per width
concat        the reverse
conv1d_state, ssm_scan   recurrent layers (reserved: no model uses them yet)
all_reduce, all_gather   sums / concatenates over ranks (emitted by the shard pass)
============  =======================================================================================================

Fused forms, emitted by passes only; each equals its expansion on the reference:

============  =======================================================================================================
add_rms_norm  a, b -> (a + b, rms_norm(a + b))
gate_up_act   x; weights: gate [N, K], up [N, K] -> act(gate x) * up x
============  =======================================================================================================
"""

from dataclasses import dataclass

#: Normalised mean squared error allowed against the reference: ops that multiply quantised or half-precision operands ...
LOW_PRECISION = 5e-4
#: ... and all others.
EXACT = 1e-7


@dataclass(frozen=True, slots=True)
class OpSpec:
    """``inputs``: number of value inputs (None: any). ``attrs``: required attribute names. ``fused``: only from passes."""

    name: str
    inputs: int | None
    attrs: frozenset[str]
    max_nmse: float = EXACT
    fused: bool = False


def _op(name: str, inputs: int | None, attrs: str = "", *, max_nmse: float = EXACT, fused: bool = False) -> OpSpec:
    return OpSpec(name, inputs, frozenset(attrs.split()), max_nmse, fused)


OPS: dict[str, OpSpec] = {
    spec.name: spec
    for spec in (
        _op("embed", 0),
        _op("linear", 1, "biases split", max_nmse=LOW_PRECISION),
        _op("rms_norm", 1, "eps group"),
        _op("layer_norm", 1, "eps group shift"),
        _op("rope", 1, "rope head_dim axis"),
        _op(
            "attention",
            3,
            "num_heads num_kv_heads head_dim scale softcap window causal",
            max_nmse=LOW_PRECISION,
        ),
        _op("act_mul", 2, "act"),
        _op("add", 2),
        _op("scale", 1, "factor"),
        _op("softcap", 1, "cap"),
        _op("moe_route", 1, "top_k normalise scoring"),
        _op("moe_linear", 2, "top_k", max_nmse=LOW_PRECISION),
        _op("combine", 2, "top_k"),
        _op("select_rows", 1),
        _op("split", 1, "widths"),
        _op("concat", None),
        _op("conv1d_state", 1, "width"),
        _op("ssm_scan", None),
        _op("all_reduce", 1),
        _op("all_gather", 1),
        _op("add_rms_norm", 2, "eps group", fused=True),
        _op("gate_up_act", 1, "act split", max_nmse=LOW_PRECISION, fused=True),
    )
}

"""Tables 1 to 4 and A of "Generalized Contrastive Learning for Multi-Modal Retrieval and Ranking"
(docs/GCL.md), and the two models of its Figure 4; a run's name is its row.

    big-retrieval sweep --sweep=configs/papers/gcl.py:table=1 --workdir=runs/gcl1
    big-retrieval sweep --sweep=configs/papers/gcl.py:table=2,runlocal --workdir=runs/try

Table 1's rows of BM25 and of published weights (`-published`) are evaluated and not trained.

Figure 4 is `big-retrieval report` of the runs clip-vit_l14 and gcl-vit_l14 of Table 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep, published

FULL, FASHION = "data/marqo-gs-10m", "data/marqo-gs-fashion-5m"
COLD = ("novel_query", "novel_document", "zero_shot")
METRICS = ("nDCG@10", "ERR", "RBP@0.9")
PLAIN = tuple(f"ranking/{split}/{metric}" for split in ("in_domain", *COLD) for metric in METRICS)
# In the rows of several fields the image counts half in the domain, and nothing in other splits.
TITLES = PLAIN[:3] + tuple(
    f"ranking/{split}/title/{metric}" for split in COLD for metric in METRICS
)
# "While the original CLIP also shows enhanced performance, it does not employ multi-field training"
IMAGES_ALONE = {"losses.main.document": ("image",)}
ROWS_AT_A_TIME = 2048
Row = tuple[str, str, Mapping[str, Any]]  # name, arguments of the config, overrides

WEIGHTS = ("constant", "linear", "inverse", "inverse_sqrt", "piecewise")
IMAGE_SHARES = ("1.0", "0.9", "0.5", "0.1", "0.0")
BATCHES = {"vit_b32": (1024, 2048, 4096, 8192, 16384, 24576), "vit_l14": (2048, 4096, 6144)}


def _batch(encoder: str, batch: int) -> Row:
    micro = f",microbatch={ROWS_AT_A_TIME}" if batch > ROWS_AT_A_TIME else ""
    return f"{encoder}-{batch}", f"encoder={encoder},batch={batch}{micro}", {}


ROWS: Mapping[str, Sequence[Row]] = {
    "1": (
        ("e5", "encoder=e5,fields=title,weight=constant", {}),
        ("cross-entropy-roberta", "encoder=roberta_clip,fields=title,weight=constant", {}),
        ("gcl-e5", "encoder=e5,fields=title", {}),
        ("gcl-roberta", "encoder=roberta_clip,fields=title", {}),
        ("clip-vit_b32", "fields=image,weight=constant", {}),
        ("clip-vit_l14", "encoder=vit_l14,fields=image,weight=constant", {}),
        ("siglip-vit_b16", "encoder=vit_b16,fields=image,weight=constant,loss=wsig", {}),
        ("gcl-vit_b16", "encoder=vit_b16,fields=image,loss=wsig", {}),
        ("gcl-vit_b32", "fields=image", {}),
        ("gcl-vit_l14", "encoder=vit_l14,fields=image", {}),
        ("clip-multi-vit_l14", "encoder=vit_l14,weight=constant", IMAGES_ALONE),
        ("gcl-multi-vit_b32", "", {}),
        ("gcl-multi-vit_l14", "encoder=vit_l14", {}),
    ),
    "2": tuple((name, f"weight={name}", {}) for name in WEIGHTS),
    "3": tuple((f"image={share}", f"image={share}", {}) for share in IMAGE_SHARES),
    "4": tuple(_batch(encoder, n) for encoder, sizes in BATCHES.items() for n in sizes),
    "A": tuple(
        (f"decay={decay}", f"decay={decay},batch=8192,microbatch={ROWS_AT_A_TIME}", {})
        for decay in ("0.02", "0.00001")
    ),
}  # fmt: skip

# Table 1's rows that nothing trains: name, arguments of the config, flag of `evaluate`
EVALUATED = (
    ("bm25", "fields=title", "--bm25"),
    ("e5-published", "encoder=e5,fields=title", "--untrained"),
    ("roberta-published", "encoder=roberta_clip,fields=title", "--untrained"),
    ("clip-vit_b32-published", "fields=image", "--untrained"),
    ("clip-vit_l14-published", "encoder=vit_l14,fields=image", "--untrained"),
)

# The rows of the paper's tables as it prints them: columns, rows
PAPER: Mapping[str, Sequence[tuple[tuple[str, ...], Mapping[str, str]]]] = {
    "1": (
        (PLAIN, {
            "bm25": "0.071 0.028 0.052 0.067 0.026 0.049 0.071 0.024 0.053 0.068 0.026 0.050",
            "e5-published":
                "0.150 0.061 0.118 0.147 0.058 0.116 0.147 0.059 0.117 0.150 0.063 0.116",
            "roberta-published":
                "0.102 0.033 0.077 0.106 0.038 0.078 0.104 0.030 0.077 0.105 0.035 0.078",
            "clip-vit_b32-published":
                "0.063 0.025 0.052 0.063 0.024 0.052 0.061 0.020 0.051 0.063 0.024 0.052",
            "clip-vit_l14-published":
                "0.081 0.031 0.067 0.077 0.027 0.063 0.079 0.029 0.065 0.079 0.026 0.065",
            "e5": "0.335 0.095 0.289 0.262 0.090 0.217 0.276 0.084 0.231 0.258 0.090 0.213",
            "cross-entropy-roberta":
                "0.332 0.099 0.288 0.272 0.091 0.225 0.280 0.090 0.236 0.263 0.088 0.217",
            "gcl-e5": "0.431 0.400 0.347 0.299 0.172 0.244 0.286 0.119 0.239 0.271 0.116 0.223",
            "gcl-roberta":
                "0.441 0.404 0.355 0.312 0.175 0.253 0.294 0.125 0.245 0.279 0.128 0.229",
            "clip-vit_b32":
                "0.258 0.059 0.228 0.096 0.032 0.082 0.102 0.034 0.087 0.067 0.021 0.058",
            "clip-vit_l14":
                "0.326 0.068 0.281 0.116 0.038 0.100 0.137 0.040 0.116 0.089 0.032 0.076",
            "siglip-vit_b16":
                "0.168 0.042 0.139 0.087 0.030 0.072 0.092 0.029 0.076 0.070 0.023 0.058",
            "gcl-vit_b16":
                "0.234 0.172 0.176 0.159 0.122 0.123 0.125 0.046 0.103 0.071 0.026 0.058",
            "gcl-vit_b32":
                "0.449 0.564 0.329 0.141 0.124 0.111 0.101 0.040 0.086 0.074 0.032 0.062",
            "gcl-vit_l14":
                "0.489 0.530 0.362 0.160 0.124 0.127 0.125 0.047 0.104 0.091 0.036 0.078",
        }),
        (TITLES, {
            "clip-multi-vit_l14":
                "0.310 0.093 0.252 0.205 0.075 0.165 0.228 0.081 0.184 0.199 0.079 0.159",
            "gcl-multi-vit_b32":
                "0.577 0.554 0.446 0.287 0.144 0.237 0.276 0.110 0.231 0.257 0.108 0.213",
            "gcl-multi-vit_l14":
                "0.603 0.562 0.467 0.305 0.156 0.251 0.288 0.118 0.241 0.272 0.114 0.224",
        }),
    ),
    "2": (
        (PLAIN, {
            "constant": "0.419 0.088 0.367 0.197 0.065 0.164 0.192 0.060 0.162 0.194 0.063 0.158",
            "linear": "0.583 0.163 0.483 0.217 0.084 0.180 0.197 0.066 0.167 0.201 0.073 0.163",
            "inverse": "0.599 0.608 0.459 0.236 0.141 0.190 0.197 0.084 0.169 0.201 0.090 0.165",
            "inverse_sqrt":
                "0.561 0.322 0.456 0.219 0.097 0.180 0.196 0.068 0.166 0.198 0.077 0.161",
            "piecewise": "0.649 0.407 0.477 0.245 0.144 0.197 0.197 0.087 0.170 0.204 0.096 0.166",
        }),
    ),
    "3": (
        (PLAIN, {
            "image=1.0": "0.494 0.591 0.364 0.122 0.099 0.098 0.068 0.037 0.057 0.068 0.037 0.057",
            "image=0.9": "0.488 0.579 0.358 0.151 0.120 0.120 0.117 0.055 0.097 0.100 0.048 0.082",
            "image=0.5": "0.599 0.608 0.459 0.236 0.141 0.190 0.197 0.084 0.169 0.201 0.090 0.165",
            "image=0.1": "0.488 0.490 0.387 0.254 0.135 0.207 0.229 0.097 0.193 0.225 0.100 0.186",
            "image=0.0": "0.473 0.483 0.379 0.257 0.137 0.209 0.236 0.099 0.197 0.229 0.098 0.188",
        }),
        (TITLES[3:], {  # the paper's last row, 0.5/0.0
            "image=0.5": "0.246 0.127 0.200 0.230 0.091 0.192 0.223 0.094 0.183",
        }),
    ),
    "4": (
        (TITLES, {
            "vit_b32-1024":
                "0.516 0.486 0.401 0.271 0.135 0.224 0.265 0.107 0.223 0.245 0.102 0.204",
            "vit_b32-2048":
                "0.577 0.554 0.446 0.287 0.144 0.237 0.276 0.110 0.231 0.257 0.108 0.213",
            "vit_b32-4096":
                "0.628 0.602 0.484 0.297 0.152 0.243 0.283 0.111 0.236 0.264 0.110 0.217",
            "vit_b32-8192":
                "0.663 0.640 0.509 0.306 0.157 0.249 0.288 0.111 0.239 0.268 0.110 0.220",
            "vit_b32-16384":  # printed as 16324
                "0.683 0.666 0.519 0.310 0.165 0.251 0.292 0.112 0.241 0.269 0.113 0.204",
            "vit_b32-24576":
                "0.683 0.689 0.515 0.313 0.171 0.252 0.292 0.117 0.241 0.270 0.113 0.204",
            "vit_l14-2048":
                "0.603 0.562 0.467 0.305 0.156 0.251 0.288 0.118 0.241 0.272 0.114 0.224",
            "vit_l14-4096":
                "0.663 0.610 0.514 0.318 0.163 0.259 0.294 0.118 0.244 0.274 0.114 0.226",
            # as printed; its last three splits seem to have changed places
            "vit_l14-6144":
                "0.690 0.630 0.535 0.274 0.114 0.226 0.320 0.164 0.261 0.293 0.115 0.244",
        }),
    ),
    "A": (
        (TITLES, {
            "decay=0.02": "0.663 0.640 0.509 0.306 0.157 0.249 0.288 0.111 0.239 0.268 0.110 0.220",
            "decay=0.00001":
                "0.663 0.637 0.509 0.307 0.157 0.250 0.287 0.111 0.238 0.268 0.110 0.220",
        }),
    ),
}  # fmt: skip


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: table (1, 2, 3, 4, A); data (of Tables 2 and 3 the fashion half of the data);
    sets (authors: their queries for development in Tables 2 and 3, for testing in the others; ours:
    halves of the queries instead); runlocal; seeds (1)."""
    args = recipe.parse_arg(arg, table="1", data="", sets="authors", seeds=1)
    recipe.one_of("table", args.table, tuple(ROWS))
    recipe.one_of("sets", args.sets, ("authors", "ours"))
    data = args.data or (FASHION if args.table in ("2", "3") else FULL)
    kind = "dev" if args.table in ("2", "3") else "test"
    sets = f"authors-{kind}" if args.sets == "authors" else kind
    own = "runlocal" if args.runlocal else f"data={data},sets={sets}"
    runs = [
        Entry(name, f"configs/gcl_gs10m.py:{given},{own}", evaluate=flag)
        for name, given, flag in EVALUATED
        if args.table == "1"
    ]
    for name, given, changes in ROWS[args.table]:
        arguments = ",".join(filter(None, (given, own)))
        runs.append(Entry(name, f"configs/gcl_gs10m.py:{arguments}", dict(changes)))
    paper: dict[str, dict[str, float]] = {run.name: {} for run in runs}
    for columns, rows in () if args.runlocal else PAPER[args.table]:
        for name, numbers in published(columns, rows).items():
            paper[name] |= numbers
    metrics = tuple(f"ranking/*{metric}" for metric in METRICS)
    return Sweep(runs=runs, seeds=range(args.seeds), metrics=metrics, paper=paper)

"""Passages and questions."""

from big_retrieval.data.catalogue.entries import DataSet, Download, Expected

MSMARCO = "https://msmarco.z22.web.core.windows.net/msmarcoranking/"
DPR = "https://dl.fbaipublicfiles.com/dpr/"

TEXTS: dict[str, DataSet] = {
    "msmarco": DataSet(
        "MS MARCO passages with hard negatives", "data/msmarco",
        "3 GB of passages, and the negatives (MS MARCO's own triples are 8 GB unpacked)",
        "non-commercial research",
        (
            Download(
                "passages and queries", f"{MSMARCO}collectionandqueries.tar.gz",
                "31644046b18952c1386cd4564ba2ae69",
            ),
            Download(
                "hard negatives of several retrievers",
                "https://huggingface.co/datasets/sentence-transformers/msmarco-hard-negatives",
            ),
            Download(
                "MS MARCO's own triples of ids, for triples=qidpidtriples.train.full.2.tsv",
                f"{MSMARCO}qidpidtriples.train.full.2.tsv.gz", "219083e80a0a751c08b968c2f31a4e0b",
            ),
        ),
        (
            "tar -xzf collectionandqueries.tar.gz -C data/msmarco",
            "gunzip -c msmarco-hard-negatives.jsonl.gz > data/msmarco/hard-negatives.jsonl",
            "or gunzip qidpidtriples.train.full.2.tsv.gz, and move the file to data/msmarco",
        ),
        (
            Expected("collection.tsv", lines=8_841_823),
            Expected("queries.train.tsv", lines=808_731),
            Expected("hard-negatives.jsonl"),
            Expected("qidpidtriples.train.full.2.tsv", optional=True),
            Expected(
                "collectionandqueries.tar.gz", md5="31644046b18952c1386cd4564ba2ae69",
                optional=True,
            ),
        ),
        "vdr_t2t_msmarco, dpr_msmarco, splade_msmarco; BEIR's copy is beir/msmarco",
    ),
    "glove": DataSet(
        "GloVe's word vectors (840B tokens, 300 numbers a word)", "data", "5.6 GB unpacked",
        "Public Domain Dedication and License",
        (Download("the vectors", "https://nlp.stanford.edu/data/glove.840B.300d.zip"),),
        ("unzip glove.840B.300d.zip -d data",),
        (Expected("glove.840B.300d.txt", lines=2_196_017),),
        "ltd_f30k, ltd_coco, ltd_vsrn (glove=none does without)",
    ),
    "nq": DataSet(
        "Natural Questions in DPR's form", "data/nq",
        "about 20 GB unpacked with Wikipedia's passages",
        "CC BY-SA 3.0; the files' license is nq_license/LICENSE beside them",
        (
            Download("training questions", f"{DPR}data/retriever/biencoder-nq-train.json.gz"),
            Download("development questions", f"{DPR}data/retriever/biencoder-nq-dev.json.gz"),
            Download("Wikipedia's passages", f"{DPR}wikipedia_split/psgs_w100.tsv.gz"),
        ),
        ("gunzip biencoder-nq-*.json.gz psgs_w100.tsv.gz, and move the files to data/nq",),
        (
            Expected("biencoder-nq-train.json", records=58_880),
            Expected("biencoder-nq-dev.json", records=6_515),
            Expected("psgs_w100.tsv", optional=True),
        ),
        "config.Dpr(path='data/nq/biencoder-nq-train.json')",
    ),
}  # fmt: skip

# The sets of BEIR that the VDR paper evaluates, and MS MARCO: judged queries, documents, and the
# digest of the archive, as BEIR's page has them.
BEIR = {
    "msmarco": (6980, "8.84M", "444067daf65d982533ea17ebd59501e4"),
    "arguana": (1406, "8.67K", "8ad3e3c2a5867cdced806d6503f29b99"),
    "climate-fever": (1535, "5.42M", "8b66f0a9126c521bae2bde127b4dc99d"),
    "dbpedia-entity": (400, "4.63M", "c2a39eb420a3164af735795df012ac2c"),
    "fever": (6666, "5.42M", "5a818580227bfb4b35bb6fa46d9b6c03"),
    "fiqa": (648, "57K", "17918ed23cd04fb15047f73e6c3bd9d9"),
    "hotpotqa": (7405, "5.23M", "f412724f78b0d91183a0e86805e16114"),
    "nfcorpus": (323, "3.6K", "a89dba18a62ef92f7d323ec890a0d38d"),
    "nq": (3452, "2.68M", "d4d3d2e48787a744b6f6e691ff534307"),
    "scidocs": (1000, "25K", "38121350fc3a4d2f48850f6aff52e4a9"),
    "scifact": (300, "5K", "5f7d1de60b170fc8027bb7898e2efca1"),
    "trec-covid": (50, "171K", "ce62140cb23feb9becf6270d0d1fe6d1"),
    "webis-touche2020": (49, "382K", "46f650ba5a527fc69e0a6521c5a23563"),
}
BEIR_ADDRESS = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/"


def _beir(name: str) -> DataSet:
    """A set of BEIR."""
    queries, documents, md5 = BEIR[name]
    split = "dev" if name == "msmarco" else "test"
    return DataSet(
        f"BEIR's {name}", f"data/beir/{name}", f"{documents} documents",
        "that of the set itself, see https://github.com/beir-cellar/beir",
        (Download("the folder", f"{BEIR_ADDRESS}{name}.zip", md5),),
        (f"unzip {name}.zip -d data/beir",),
        (
            Expected("corpus.jsonl"), Expected("queries.jsonl"),
            Expected(f"qrels/{split}.tsv", queries=queries),
            Expected(f"../{name}.zip", md5=md5, optional=True),
        ),
        "vdr_t2t_msmarco, dpr_msmarco, splade_msmarco",
    )  # fmt: skip


TEXTS |= {f"beir/{name}": _beir(name) for name in BEIR}

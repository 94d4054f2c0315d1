"""Images with captions, products, and images with labels."""

from big_retrieval.data.catalogue.entries import DataSet, Download, Expected


def _tars(name: str) -> str:
    """The command that fetches the images of a list of addresses into tar files."""
    return (
        f"img2dataset --url_list {name}.tsv --input_format tsv --url_col url --caption_col caption "
        f"--output_format webdataset --output_folder data/{name} --image_size 256"
    )


KARPATHY = Download(
    "Karpathy's split files", "https://cs.stanford.edu/people/karpathy/deepimagesent/"
    "caption_datasets.zip",
)  # fmt: skip
STATS = "_stats.json"  # img2dataset writes it when a tar file is finished
FLICKR = "images belong to their authors on Flickr and follow its terms of use"
CONCEPTUAL = "free for any use, an acknowledgement of Google LLC is asked for; images have owners"
MARQO = "https://marqo-gcl-public.s3.amazonaws.com/v1/"
SPLITS = [f"query_{query}_product_id_{product}" for query in (0, 1) for product in (0, 1)]
VARIANT = "https://people.eecs.berkeley.edu/~hendrycks/"


def _marqo(title: str, published: str, size: str) -> DataSet:
    """Marqo-GS-10M or a part, which have folders of their own in one archive."""
    name = published.replace("_full", "").replace("_", "-")
    return DataSet(
        title, f"data/{name}", f"{size}; the page tells the archives",
        "Apache 2.0 as the repository; images belong to the shops",
        (
            Download("pairs, queries and documents", f"{MARQO}marqo-gs-dataset.tar"),
            Download("the images", f"{MARQO}images_archive.tar"),
            Download("or all of it as Parquet", "https://huggingface.co/datasets/Marqo/marqo-GS-10M"),
        ),
        (
            "tar -xf marqo-gs-dataset.tar",
            f"mv marqo-gs-dataset/{published} data/{name}",
            f"unpack images_archive.tar, and link its folder of images to data/{name}/images",
        ),
        (
            Expected("corpus_1.json"), Expected("corpus_2.json"),
            *(Expected(f"{split}.csv") for split in SPLITS),
            *(Expected(f"{split}_queries.json", optional=True) for split in SPLITS),
            *(Expected(f"{split}_gt_{kind}.json", optional=True)
              for split in SPLITS for kind in ("dev", "test")),
            Expected("images/*"),
        ),
        "gcl_gs10m",
    )  # fmt: skip


IMAGES: dict[str, DataSet] = {
    "coco": DataSet(
        "MS-COCO 2014 with Karpathy's splits", "data/coco", "20 GB",
        f"captions CC BY 4.0; {FLICKR}",
        (
            KARPATHY,
            Download(
                "the training images", "http://images.cocodataset.org/zips/train2014.zip",
                "0da8c0bd3d6becc4dcb32757491aca88",
            ),
            Download(
                "the validation images", "http://images.cocodataset.org/zips/val2014.zip",
                "a3d79f5ed8d289b7a7554ce06a5782b3",
            ),
        ),
        (
            "unzip caption_datasets.zip dataset_coco.json -d data/coco",
            "unzip -q train2014.zip -d data/coco",
            "unzip -q val2014.zip -d data/coco",
        ),
        (
            Expected("dataset_coco.json", records=123_287),
            Expected("train2014/*.jpg", files=82_783),
            Expected("val2014/*.jpg", files=40_504),
        ),
        "ltd_coco, clip_bert_yfcc15m, vdr_cm_yfcc15m, the oblique configs",
    ),
    "flickr30k": DataSet(
        "Flickr30k with Karpathy's splits", "data/flickr30k", "5 GB",
        f"for non-commercial research and education; {FLICKR}",
        (
            KARPATHY,
            Download(
                "the images, sent after a form", "https://shannon.cs.illinois.edu/DenotationGraph/"
            ),
        ),
        (
            "unzip caption_datasets.zip dataset_flickr30k.json -d data/flickr30k",
            "tar -xf flickr30k-images.tar -C data/flickr30k",
        ),
        (
            Expected("dataset_flickr30k.json", records=31_014),
            Expected("flickr30k-images/*.jpg", files=31_783),
        ),
        "ltd_f30k, clip_bert_yfcc15m, vdr_cm_yfcc15m, the oblique configs",
    ),
    "cxc": DataSet(
        "Crisscrossed Captions and TERN's relevances, beside COCO", "data/coco", "1 GB",
        "as their pages say",
        (
            Download(
                "the ratings of captions and images",
                "https://github.com/google-research-datasets/Crisscrossed-Captions (data/)",
            ),
            Download("TERN's data", "http://datino.isti.cnr.it/tern/data.tar"),
        ),
        (
            "cp Crisscrossed-Captions/data/sits_test.csv data/coco",
            "tar -xf data.tar; cp $(find data -name 'coco-test-*.npy') data/coco",
        ),
        (
            Expected("sits_test.csv"), Expected("coco-test-spice.npy"),
            Expected("coco-test-rougeL.npy"),
        ),
        "ltd_coco, ltd_vsrn and ltd_tern (ratings=none, rouge=computed, spice=none do without)",
    ),
    "regions": DataSet(
        "Bottom-up regions of COCO, 36 an image", "data/coco",
        "the download, and 36 GB that `data regions` writes",
        "as their pages say",
        (
            Download(
                "bottom-up attention's TSV files of 36 regions",
                "https://github.com/peteanderson80/bottom-up-attention",
            ),
            Download(
                "or the same features as TERN publishes them",
                "http://datino.isti.cnr.it/tern/features_36.tar",
            ),
        ),
        ("big-retrieval data regions --data=FILE.tsv,FILE.tsv --out=data/coco/regions",),
        (
            Expected("regions/features.npy"), Expected("regions/boxes.npy"),
            Expected("regions/regions.json"),
        ),
        "ltd_vsrn, ltd_tern",
    ),
    "scan": DataSet(
        "The regions that SCAN and VSRN publish", "data/scan",
        "about 46 GB unpacked: 36 regions of 2,048 numbers an image",
        "as their pages say",
        (
            Download(
                "features and captions", "https://www.kaggle.com/datasets/kuanghueilee/scan-features"
            ),
        ),
        ("unzip archive.zip -d data/scan",),
        tuple(
            Expected(f"{folder}/{split}_{kind}")
            for folder in ("f30k_precomp", "coco_precomp")
            for split in ("train", "dev", "test")
            for kind in ("ims.npy", "caps.txt")
        ),
        "ltd_vsrn:name=flickr30k",
    ),
    "cc3m": DataSet(
        "Conceptual Captions 3M", "data/cc3m", "about 100 GB at 256 pixels", CONCEPTUAL,
        (
            Download(
                "the list Train_GCC-training.tsv",
                "https://ai.google.com/research/ConceptualCaptions/download",
            ),
        ),
        (
            "(printf 'caption\\turl\\n'; cat Train_GCC-training.tsv) > cc3m.tsv",
            _tars("cc3m"),
        ),
        (Expected("*.tar", files=332, beside=STATS),),
        "config.Tar(path='data/cc3m/*.tar')",
    ),
    "cc12m": DataSet(
        "Conceptual 12M", "data/cc12m", "331 GB at 256 pixels", CONCEPTUAL,
        (Download("the list", "https://storage.googleapis.com/conceptual_12m/cc12m.tsv"),),
        (
            "mv cc12m.tsv list.tsv; (printf 'url\\tcaption\\n'; cat list.tsv) > cc12m.tsv",
            _tars("cc12m"),
        ),
        (Expected("*.tar", files=1243, beside=STATS),),
        "config.Tar(path='data/cc12m/*.tar')",
    ),
    "yfcc15m": DataSet(
        "The 15 million pairs of YFCC100M that DeCLIP chose", "data/yfcc15m",
        "about 450 GB at 256 pixels", f"Creative Commons licenses, one for each image; {FLICKR}",
        (
            Download(
                "DeCLIP's list (YFCC15M label file)",
                "https://github.com/Sense-GVT/DeCLIP/blob/main/docs/dataset_prepare.md",
            ),
            Download(
                "the images are fetched by their addresses; or taken from YFCC100M",
                "https://multimediacommons.wordpress.com/yfcc100m-core-dataset/",
            ),
        ),
        ("write the columns url and caption of the list to yfcc15m.tsv", _tars("yfcc15m")),
        (Expected("*.tar", beside=STATS),),
        "oblique_s16_yfcc15m, clip_bert_yfcc15m, vdr_cm_yfcc15m",
    ),
    "redcaps": DataSet(
        "RedCaps, pairs out of YFCC's domain", "data/redcaps", "some thousand pairs are enough",
        "as its page says; images belong to their authors",
        (Download("the lists of captions and addresses", "https://redcaps.xyz"),),
        (
            "fetch the images of some thousand rows, and write a line a pair to validation.jsonl: "
            '{"image": "relative/path.jpg", "captions": ["..."]}',
        ),
        (Expected("validation.jsonl"),),
        "oblique_s16_yfcc15m:redcaps=data/redcaps/validation.jsonl",
    ),
    "marqo-gs-10m": _marqo("Marqo-GS-10M", "marqo_gs_full_10m", "10 million pairs"),
    "marqo-gs-fashion-5m": _marqo("Its Fashion-5M", "marqo_gs_fashion_5m", "5 million pairs"),
    "imagenet": DataSet(
        "ImageNet-1K (ILSVRC 2012)", "data/imagenet", "145 GB, its validation images 6.3 GB",
        "non-commercial research and education, after registration",
        (
            Download(
                "ILSVRC2012_img_val.tar", "https://image-net.org/download.php",
                "29b22e2961454d5413ddabcf34fc5622",
            ),
            Download(
                "ILSVRC2012_img_train.tar", "https://image-net.org/download.php",
                "1d675b47d978889d74fa0da5fadfb00e",
            ),
            Download(
                "names and prompts of the classes, for data/prompts.json (docs/DATA.md)",
                "https://github.com/openai/CLIP (notebooks/Prompt_Engineering_for_ImageNet.ipynb)",
            ),
        ),
        (
            "sort the images into val/<wnid>/ and train/<wnid>/, as torchvision's ImageNet does;",
            "or with TensorFlow Datasets: tfds build imagenet2012 --file_format=array_record",
        ),
        (
            Expected("val/*/*.JPEG", files=50_000),
            Expected("train/*/*.JPEG", files=1_281_167, optional=True),
            Expected("../prompts.json", optional=True),
            Expected(
                "ILSVRC2012_img_val.tar", md5="29b22e2961454d5413ddabcf34fc5622", optional=True
            ),
        ),
        "evaluators imagenet of the oblique and VDR configs; the linear probe needs train/",
    ),
    "imagenet-v2": DataSet(
        "ImageNet-V2, matched frequency", "data/imagenet-v2", "1.3 GB", "MIT",
        (
            Download(
                "the images", "https://huggingface.co/datasets/vaishaal/ImageNetV2/resolve/main/"
                "imagenetv2-matched-frequency.tar.gz",
            ),
        ),
        (
            "tar -xzf imagenetv2-matched-frequency.tar.gz",
            "mv imagenetv2-matched-frequency-format-val data/imagenet-v2",
        ),
        (Expected("*/*.jpeg", files=10_000),),
        "the oblique configs; the folders 0 to 999 are the labels",
    ),
    "imagenet-a": DataSet(
        "ImageNet-A, 200 of the classes", "data/imagenet-a", "0.7 GB", "MIT",
        (Download("the images", f"{VARIANT}imagenet-a.tar"),),
        ("tar -xf imagenet-a.tar -C data",),
        (Expected("n*/*.jpg", files=7_500),),
        "the oblique configs",
    ),
    "imagenet-r": DataSet(
        "ImageNet-R, 200 of the classes", "data/imagenet-r", "2.2 GB", "MIT",
        (Download("the images", f"{VARIANT}imagenet-r.tar"),),
        ("tar -xf imagenet-r.tar -C data",),
        (Expected("n*/*.jpg", files=30_000),),
        "the oblique configs",
    ),
}  # fmt: skip

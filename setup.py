"""Installation metadata of big_retrieval; tool settings live in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent

BASE = [
    "absl-py>=2.1",
    "flax>=0.12,<0.14",
    "ftfy>=6.3",
    "grain>=0.2.16",
    "jax>=0.10,<0.13",
    "huggingface_hub>=0.34",
    "ml_collections>=1.1",
    "ml_dtypes>=0.5",
    "msgpack>=1.0",
    "numpy>=2.0",
    "optax>=0.2.6",
    "orbax-checkpoint>=0.12,<0.13",
    "pillow>=11",
    "pyarrow>=20",
    "safetensors>=0.5",
    "scipy>=1.13",
    "tensorboardX>=2.6",
    "tensorflow-datasets>=4.9.9",
    "tokenizers>=0.22",
    "tqdm>=4.66",
    "transformers>=5.0",
]

CUDA, TPU = ["jax[cuda12]>=0.10,<0.13"], ["jax[tpu]>=0.10,<0.13"]

EXTRAS = {
    "bm25": ["bm25s>=0.3"],
    "dev": [
        "Jinja2>=3.1",
        "bm25s>=0.3",
        "httpx2>=2",
        "hypothesis>=6.100",
        "matplotlib>=3.9",
        "opencv-python-headless>=4.10",
        "pyright>=1.1.400",
        "pytest>=8.3",
        "pytest-xdist>=3.6",
        "python-multipart>=0.0.20",
        "pytrec-eval-terrier>=0.5.10",
        "rouge-score>=0.1.2",
        "ruff>=0.12",
        "setuptools>=77",
        "starlette>=0.46",
        "uvicorn>=0.34",
        "wordcloud>=1.9.4",
    ],
    "demo": ["Jinja2>=3.1", "python-multipart>=0.0.20", "starlette>=0.46", "uvicorn>=0.34"],
    "docs": ["mkdocs-material>=9.6", "mkdocstrings[python]>=0.29"],
    "mlflow": ["mlflow>=3.0"],
    "cuda": CUDA,
    "explain": ["matplotlib>=3.9", "wordcloud>=1.9.4"],
    # the same packages for `big-retrieval plan` on a machine without the device: its compiler
    "plan-gpu": CUDA,
    "plan-tpu": TPU,
    "opencv": ["opencv-python-headless>=4.10"],
    "qdrant": ["qdrant-client>=1.15"],
    "tpu": TPU,
    "torch": ["torch==2.13.0"],
    "wandb": ["wandb>=0.31"],
}

PAPERS = {
    "Paper: oblique topology (code)": "https://github.com/minogame/clip-mtob",
    "Paper: GCL": "https://arxiv.org/abs/2404.08535",
    "Paper: latent target decoding": "https://openreview.net/forum?id=T1XtOqrVKn",
    "Paper: VDR": "https://openreview.net/forum?id=ZlQRiFmq7Y",
}

SHIPPED = ("configs", "launch")  # folders that are installed as package data


class BuildPy(build_py):
    """Copies configs/ and launch/ into the package, for big_retrieval/cli/shipped.py.

    An editable installation reads them from the checkout.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in SHIPPED:
            target = Path(self.build_lib, "big_retrieval", "_shipped", name)
            shutil.rmtree(target, ignore_errors=True)  # what an earlier build left
            shutil.copytree(HERE / name, target, ignore=shutil.ignore_patterns("__pycache__"))


setup(
    name="big_retrieval",
    version="0.1.0",
    description="Contrastive retrieval models in JAX/Flax, from a laptop to a TPU pod",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The big_retrieval authors",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    keywords="retrieval, contrastive learning, CLIP, sparse retrieval, embeddings, JAX, Flax",
    project_urls=PAPERS,
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Recognition",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    # That packages lie in one folder is said so that an editable installation puts this folder on
    # the path. The finder that it would make otherwise comes second to an empty namespace: in the
    # folder that holds a checkout named big_retrieval, `import big_retrieval` found the checkout.
    package_dir={"": "."},
    packages=find_packages(include=["big_retrieval", "big_retrieval.*"]),
    package_data={
        "big_retrieval": [
            "py.typed",
            "*/*.css",
            "*/*.toml",
            "demo/*.js",
            "demo/templates/*.html",
            "exporting/pytorch/*.py",
        ]
    },
    cmdclass={"build_py": BuildPy},
    entry_points={"console_scripts": ["big-retrieval = big_retrieval.__main__:main"]},
    install_requires=BASE,
    extras_require=EXTRAS,
)

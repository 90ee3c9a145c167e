"""Setup for pip. All metadata and requirements are read from settings.ini."""

import shutil
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

here = Path(__file__).parent
config = ConfigParser(delimiters=["="])
config.read(here / "settings.ini", encoding="utf-8")
cfg = config["DEFAULT"]

suffix = "_requirements"
extras = {key.removesuffix(suffix): cfg[key].split() for key in cfg if key.endswith(suffix)}

# The model that comes with wbe: it lies outside the package and is copied into the wheel.
MODEL = here / "data_samples" / "wbe-tiny"


class BuildWithModel(build_py):
    def run(self):
        super().run()
        if not self.editable_mode and MODEL.exists():
            shutil.copytree(MODEL, Path(self.build_lib) / "wbe" / "data_samples" / MODEL.name, dirs_exist_ok=True)


setup(
    name=cfg["lib_name"],
    version=cfg["version"],
    description=cfg["description"],
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author=cfg["author"],
    author_email=cfg["author_email"],
    license="Apache-2.0",
    license_files=["LICENSE"],
    url=cfg["git_url"],
    keywords=cfg["keywords"].split(),
    packages=find_packages(include=["wbe", "wbe.*"]),
    include_package_data=True,
    cmdclass={"build_py": BuildWithModel},
    package_data={
        "wbe": ["py.typed"],  # it has types
        "wbe.analysis": ["*.toml", "report.html", "report.js", "results.ipynb", "vendor/*"],
        "wbe.benchmark": ["*.toml", "*.sql", "*.md", "croissant.json"],
        "wbe.cli": ["old_words.toml"],
        "wbe.editors": ["*.toml", "*.md"],
        "wbe.lm": ["*.toml", "toy_tokenizers/*.json"],
        "wbe.metrics": ["*.toml"],
        "wbe.runs": ["*.toml", "sweeps/*.toml", "*.md"],
        "wbe.tiny": ["*.toml"],
        "wbe.wikidata": ["*.toml", "*.sql"],
        "wbe.wikipedia": ["*.toml"],
        "wbe.world": ["*.toml"],
        "wbe.writers": ["*.toml", "prompt_files/*.md", "prices.json"],
    },
    python_requires=f">={cfg['min_python']}",
    install_requires=cfg["requirements"].split(),
    extras_require=extras,
    entry_points={
        "console_scripts": cfg["console_scripts"].split(),
        "nbdev": [f"{cfg['lib_path']}={cfg['lib_path']}._modidx:d"],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
    ],
    zip_safe=False,
)

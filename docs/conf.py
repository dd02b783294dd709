"""How the site is built: `make docs`, which treats every warning as an error."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for tests.docs.site

project = "airflow-provider-jmsjca"
author = "The authors of airflow-provider-jmsjca"
project_copyright = author
release = metadata.version(project)

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.extlinks",
    "sphinx.ext.graphviz",
    "sphinx_copybutton",
    "tests.docs.site",
]
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
smartquotes = False  # examples in docstrings are code

autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# The documents of Airflow and Spark that fit what the tests run.
extlinks = {
    "airflow": ("https://airflow.apache.org/docs/apache-airflow/stable/%s", "%s"),
    "spark": ("https://spark.apache.org/docs/latest/%s", "%s"),
}

graphviz_output_format = "svg"
graphviz_dot = str(Path(sys.executable).with_name("graphviz-pure"))


html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"JMS for Airflow and Spark {release}"
# Where GitHub builds the site, each page links to its source there.
server, repository = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
if server and repository:
    html_theme_options = {
        "source_repository": f"{server}/{repository}/",
        "source_branch": os.environ.get("GITHUB_REF_NAME", "main"),
        "source_directory": "docs/",
    }
copybutton_prompt_text = "$ "

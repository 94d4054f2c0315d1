"""A page on this machine that searches: words, an image, or a document's neighbours.

`opening.py` makes what is searched: a `DemoDocuments` of documents and the `Way`s to search in it,
from runs and indexes. `worker.py` answers one query after the other in a thread; `service.py` is
what the page and programs ask; `app.py` has the routes, `pages.py` the page, `api.py` the JSON.
starlette and uvicorn (the extra `demo`) are imported in `app.py`, `uploads.py`, `connections.py`
and `serving.py`.
"""

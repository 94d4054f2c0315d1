"""Page on this machine that searches by words, by an image, or for the neighbors of a document.

`load_collection.py` opens runs and indexes as `DemoDocuments` and `SearchMode`s; `service.py`
searches and explains, one request at a time; `content.py` has the answers as JSON values, which
`pages.py` fills into the templates; `app.py` has the routes and `server.py` starts the server. Only
`pages.py`, `app.py`, `server.py` and `uploads.py` import libraries of the extra `demo`.
"""

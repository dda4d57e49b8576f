"""The routes of the control API, one module per group. `app.py` lists their routers."""

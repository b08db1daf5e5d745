"""The experiments of conf/experiment/, run in virtual time; :mod:`dynsl_app.report` makes tables and figures of them."""

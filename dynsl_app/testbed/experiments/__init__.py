"""The experiments of conf/experiment/, run in virtual time; :mod:`dynsl_app.report` draws what they find."""

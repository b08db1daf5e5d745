"""Figures and tables from the files of run folders."""

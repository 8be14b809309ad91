"""Logs of entries: the files behind LangGraph's store and cache."""

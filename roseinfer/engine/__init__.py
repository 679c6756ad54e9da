"""The finished engine. So far its sizes, computed before anything is allocated."""

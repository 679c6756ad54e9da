"""The finished engine. So far its sizes, reckoned before anything is allocated."""

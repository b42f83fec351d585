"""Data of the HTML report of an audit, in bounded memory."""

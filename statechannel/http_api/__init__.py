"""The admin API: HTTP for programs and pages, served by every broker and by `statechannel console` (design/http-api.md).

`documents` has the rows that it shares with the command line; only what serves requests needs the extra `http`.
"""

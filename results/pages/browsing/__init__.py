"""The pages of `faultline serve`: what there is, each part of it as HTML. No sockets: those are
`harness.cli.serve`'s.
"""

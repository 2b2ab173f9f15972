"""Which of several engines runs a request: policies, known prefixes, placement. No transport."""

"""Mutation tests: small faults are planted one at a time, and the area's tests must fail."""

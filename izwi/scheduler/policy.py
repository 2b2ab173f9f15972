"""Decide what the next step of one model runs. Pure: no clocks, no tensors, no I/O.

A policy is a function from a snapshot of the sequences and a step's budgets to a plan. All policies
share the accounting of `step_builder.py`; they differ in which sequence goes first and which gives
way.
"""

from __future__ import annotations

from izwi.scheduler.deadline import plan_deadline, rank_deadline
from izwi.scheduler.ordered import plan_fcfs, plan_priority, rank_fcfs, rank_priority
from izwi.scheduler.plan import Budgets, Forward, Order, Plan, Policy, View

__all__ = ["POLICIES", "Budgets", "Forward", "Order", "Plan", "Policy", "View"]

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("fcfs", rank_fcfs, plan_fcfs, Order.ARRIVAL),
        Policy("priority", rank_priority, plan_priority, Order.PRIORITY),
        Policy("deadline", rank_deadline, plan_deadline, Order.SLACK),
    )
}

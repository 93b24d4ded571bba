/** Contracts, planners and execution of tensorferry. Deep imports (`@tensorferry/core/planner/RosterPlanner`) load less. */
export {}

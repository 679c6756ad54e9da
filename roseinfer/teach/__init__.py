"""What a notebook calls: `from roseinfer import teach; teach.setup()`."""

from __future__ import annotations

from roseinfer.bench.table_steps import compare_builds, table_steps
from roseinfer.display.figure import figure_alt
from roseinfer.display.timeline import timeline
from roseinfer.kernels.cases import paged_case
from roseinfer.posts.data import beside_post, post_facts, post_table
from roseinfer.profiling.data_sheets import data_sheet

from .exercises.exercise import check, hint
from .exercises.exercise import show_exercise as exercise
from .journal.predict import predict, reveal
from .journal.predictions import predictions
from .journal.progress import progress
from .measure.compare_choices import compare_prefills, compare_steps
from .measure.compare_shapes import compare_shapes, sql
from .measure.contract_report import contract
from .measure.kernel_loads import count_loads
from .measure.lane_race import race_lanes
from .measure.order_race import race_orders, step_cost
from .measure.overlap_price import say_overlap_price
from .measure.phase_shares import phase_shares
from .measure.prove import prove
from .measure.race import race
from .measure.recorded import recorded, recorded_kernels, recorded_online, recorded_trace
from .measure.request_loops import PromptByPrompt, StaticBatches
from .measure.request_run import Run, record_run, work
from .measure.roofline import roofline
from .measure.row_reads import count_rows
from .measure.step_lanes import Speeds, record_lanes
from .measure.table_price import table_price
from .measure.text_price import round_inputs, text_price
from .measure.tree_run import record_tree
from .notebook_setup import device, setup
from .source.course_map import course_map
from .source.functions import show_source
from .source.recorded_code import show_graph
from .source.side_by_side import side_by_side
from .source.stages import show_diff, show_stage
from .views.block_schedule import Schedule, record_schedule
from .views.block_view import block_view, walk_blocks, walk_tables
from .views.block_walk_picture import draw_block_walk
from .views.cache_charts import draw_first_tokens, draw_hit_rates
from .views.clock_race import draw_clock_race
from .views.dashboard import dashboard
from .views.flat_batch_picture import draw_flat_batch
from .views.lane_charts import draw_lanes, draw_lanes_by, draw_overlap_gain
from .views.layout_picture import draw_layouts
from .views.padding_picture import draw_padding
from .views.pictures import draw_append, draw_floors, draw_gather, draw_recompute
from .views.policy_charts import draw_blocks_held, draw_times, draw_who_waits
from .views.pool_picture import draw_pool_gather
from .views.prefix_tree import walk_prefix_tree
from .views.program_picture import draw_programs
from .views.rows_picture import draw_rows_built
from .views.run_charts import draw_gaps, draw_requests, draw_steps
from .views.said import say
from .views.seam_picture import draw_seam
from .views.slot_walk import walk_slots
from .views.step_debugger import step_debugger
from .views.step_time_sentences import say_step_times
from .views.task_picture import walk_tasks
from .views.time_charts import draw_budgets, draw_request_times, draw_step_times
from .views.token_walk import walk_tokens
from .views.weight_order import draw_weight_order

__all__ = [
    "PromptByPrompt", "Run", "Schedule", "Speeds", "StaticBatches", "beside_post", "block_view", "check",
    "compare_builds", "compare_prefills", "compare_shapes", "compare_steps", "contract", "count_loads", "count_rows",
    "course_map", "dashboard", "data_sheet", "device", "draw_append", "draw_block_walk", "draw_blocks_held",
    "draw_budgets", "draw_clock_race", "draw_first_tokens", "draw_flat_batch", "draw_floors", "draw_gaps",
    "draw_gather", "draw_hit_rates", "draw_lanes", "draw_lanes_by", "draw_layouts", "draw_overlap_gain",
    "draw_padding", "draw_pool_gather", "draw_programs", "draw_recompute", "draw_request_times", "draw_requests",
    "draw_rows_built", "draw_seam", "draw_step_times", "draw_steps", "draw_times", "draw_weight_order",
    "draw_who_waits", "exercise", "figure_alt", "hint", "paged_case", "phase_shares", "post_facts", "post_table",
    "predict", "predictions", "progress", "prove", "race", "race_lanes", "race_orders", "record_lanes", "record_run",
    "record_schedule", "record_tree", "recorded", "recorded_kernels", "recorded_online", "recorded_trace", "reveal",
    "roofline", "round_inputs", "say", "say_overlap_price", "say_step_times", "setup", "show_diff", "show_graph",
    "show_source", "show_stage", "side_by_side", "sql", "step_cost", "step_debugger", "table_price", "table_steps",
    "text_price", "timeline", "walk_blocks", "walk_prefix_tree", "walk_slots", "walk_tables", "walk_tasks",
    "walk_tokens", "work",
]  # fmt: skip

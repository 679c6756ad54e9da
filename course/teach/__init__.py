"""What a notebook calls: `from course import teach; teach.setup()`."""

from __future__ import annotations

from course.posts.data import beside_post, post_facts, post_table
from roseinfer.bench.table_steps import compare_builds, table_steps
from roseinfer.display.timeline.timeline import timeline
from roseinfer.kernels.cases import paged_case
from roseinfer.profiling.data_sheets import data_sheet

from .exercises.exercise import check, hint
from .exercises.exercise import show_exercise as exercise
from .journal.predict import predict, reveal
from .journal.predictions import predictions
from .journal.progress import progress
from .lesson00.answer import ask
from .lesson00.text_race import race_texts
from .lesson00.token_walk import walk_tokens
from .lesson01.recompute import Recompute, RecomputeBatch
from .lesson03.append_picture import draw_append
from .lesson03.post_counts import append_counts, gather_counts, slice_counts
from .lesson04.dashboard import dashboard
from .lesson04.pool_picture import draw_pool_gather
from .lesson06.schedules import run_schedule
from .lesson07.attention_ops import attention_launches, attention_ops
from .lesson07.program_picture import draw_programs
from .lesson08.growth_picture import draw_growth
from .lesson08.seam_picture import draw_seam
from .lesson09.read_rates import cached_bytes, head_major, read_rates
from .lesson09.row_reads import count_rows
from .lesson09.task_picture import walk_tasks
from .lesson10.change_times import draw_changes, time_changes
from .lesson10.row_counts import host_part, rows_in_post_004
from .lesson10.slot_walk import walk_slots
from .lesson11.clock_race import draw_clock_race
from .lesson11.compare_choices import compare_prefills, compare_steps
from .lesson11.flat_batch_picture import draw_flat_batch
from .lesson12.held_out import held_out_texts
from .lesson12.layer_errors import layer_errors
from .lesson12.layouts import time_layouts, time_matrices
from .lesson12.real_price import real_price
from .lesson12.rounding_grid import walk_rounding
from .lesson12.text_price import largest_over_median, round_inputs, round_weights, text_price
from .lesson12.weight_order import draw_weight_order
from .lesson13.launch_picture import walk_launches
from .lesson13.padding_picture import draw_padding
from .lesson13.stage_graph import record_decode, show_stage_graph
from .lesson13.step_operations import count_operations
from .lesson13.step_speeds import compare_graphs
from .lesson14.board import walk_board
from .lesson14.time_charts import draw_budgets, draw_step_times
from .lesson15.cache_charts import draw_first_tokens, draw_hit_rates
from .lesson15.prefix_tree import walk_prefix_tree
from .lesson15.stage_requests import request, run_out
from .lesson15.tree_run import record_tree
from .lesson16.lane_charts import draw_lanes, draw_lanes_by
from .lesson16.step_lanes import Speeds, record_lanes
from .lesson17.aborted_run import serve_aborting
from .lesson17.policy_charts import draw_times, draw_who_waits
from .lesson17.queue_order import order_queue
from .lesson17.simulated_run import simulate
from .lesson18.melting_timeline import draw_melting
from .lesson18.operation_times import time_operations
from .lesson18.own_kernel import with_loops
from .lesson18.races import find_races
from .lesson18.row_products import time_products
from .lesson19.chat_prompt import chat_prompt
from .lesson19.draft_gain import draw_draft_gain
from .lesson19.draft_race import prove_drafts, race_drafts
from .lesson19.draft_speed import acceptance, time_rows
from .lesson19.drafts import draw_drafts
from .lesson19.engine_drafts import race_engine_drafts
from .lesson19.own_draft import with_draft
from .lesson20.admission_race import at_most, race_admission
from .lesson20.break_it import break_server
from .lesson20.load_picture import draw_load
from .lesson20.loads import load_clients, load_rate, sweep_rates
from .lesson20.served import prove_served, say_server_price
from .lesson20.server import serve_chat, start_server
from .lesson21.rank_sizes import split_sizes
from .lesson21.reduce_times import one_shot_seconds, reduce_share, ring_seconds
from .lesson21.split_picture import draw_split
from .lesson22.contest_cell import ENGINE_ENTRY, run_contest
from .lesson22.contest_pictures import draw_contest, draw_workload, profile_contest
from .lesson22.step_counts import compare_policies, count_steps
from .lesson23.launch_counts import count_launches, least_times
from .lesson23.step_profile import profile_step, recorded_step
from .lessona1.attention_maps import draw_attention_maps
from .lessona1.attention_walk import walk_attention
from .lessona1.forward_times import time_forwards
from .lessona1.head_groups import draw_head_groups
from .lessona1.hidden_states import prove_hidden_states
from .lessona1.layer_picture import walk_layer
from .lessona1.recorded_heads import record_heads
from .lessona1.rotation_chart import draw_rotations
from .lessona2.click_timeline import click_timeline
from .lessona2.read_runs import trace_reads
from .lessona2.reads_picture import walk_reads
from .lessona2.self_time_picture import walk_self_time
from .lessona3.compiled_product import compile_product
from .lessona3.rung_picture import draw_rung
from .lessona3.rung_record import record_rung
from .measure.compare_shapes import compare_shapes, sql
from .measure.contract_report import contract
from .measure.kernel_loads import count_loads
from .measure.median_times import median_ms
from .measure.prove import Oracles, prove
from .measure.race import race
from .measure.read_share import read_share
from .measure.ready_batch import ready_batch
from .measure.recorded import (
    recorded,
    recorded_executors,
    recorded_kernels,
    recorded_online,
    recorded_steps,
    recorded_trace,
)
from .measure.request_loops import PromptByPrompt, StaticBatches
from .measure.request_run import Run, record_run, work
from .measure.roofline import Roofline as roofline
from .measure.speed_sentences import say_speeds
from .notebook_setup import device, setup
from .served.serve_requests import recorded_requests, serve_requests
from .source.course_map import course_map
from .source.functions import show_source
from .source.recorded_code import show_graph
from .source.side_by_side import side_by_side
from .source.stages import show_diff, show_stage
from .views.block_view import walk_blocks
from .views.engine_page import engine_page
from .views.gather_picture import draw_gather
from .views.lines_chart import draw_lines
from .views.memory_walk import walk_memory
from .views.online_softmax import walk_online_softmax
from .views.own_pieces import my_entry, my_pieces
from .views.rows_picture import draw_rows_built
from .views.rows_table import table
from .views.run_charts import draw_gaps, draw_requests, draw_slots, draw_steps
from .views.said import say
from .views.step_debugger import step_debugger

"""One wrong line each in the function library: a fence, a name, a move between two sets that is missing.

The model's ways (``tests/model``) notice nearly all of them.
"""

from __future__ import annotations

from tests.mutation.mutant import Mutant

FORGETFUL = "tests/queueing/test_forgetful_server.py"
MODEL = "tests/model/test_against_code.py"


def _lua(name: str, part: str, right: str, wrong: str, test: str = MODEL) -> Mutant:
    return Mutant(name, f"queueing/lua/{part}.lua", right, wrong, test)


QUEUE_MUTANTS = (
    _lua(
        "an emit asks for no token",
        "publish",
        "      is_ours = token ~= '' and try('HGET', record_prefix .. key, 'token') == token\n",
        "      is_ours = true\n",
    ),
    _lua(
        "an emit leaves a gap behind a server that forgot",
        "publish",
        "if is_ours and (tonumber(try('XLEN', o)) or 0) < tonumber(args[at + 2]) then",
        "if false then",
    ),
    _lua(
        "a finish leaves a gap behind a server that forgot",
        "publish",
        "  if is_behind(o, counts[5]) then\n",
        "  if false then\n",
    ),
    _lua(
        "a finish asks for no token",
        "publish",
        "  if not owns(record, token) then return 'lost' end\n  if is_behind",
        "  if is_behind",
    ),
    _lua(
        "a repeated finish ends the job again",
        "publish",
        "  if record.state == 'finished' and token ~= '' and record.done == token then",
        "  if false then",
    ),
    _lua(
        "a renewal asks for no token",
        "publish",
        "    if holds(tag, args[at], args[at + 1]) then\n",
        "    if true then\n",
    ),
    _lua(
        "a release asks for no token",
        "publish",
        "    if owns(record, args[at + 1]) then\n      result = 'ok'\n      unclaim",
        "    if record then\n      result = 'ok'\n      unclaim",
    ),
    _lua(
        "two owners may have one token",
        "claim",
        "'running', claim.token .. '.' .. record.epoch",
        "'running', claim.token .. '.1'",
        FORGETFUL,
    ),
    _lua(
        "a repeated claim brings other jobs",
        "claim",
        "  if last_token ~= token then return items end\n",
        "  if last_token == token then return items end\n",
    ),
    _lua(
        "a job that ended keeps its token",
        "ending",
        "    'n', whole(tokens), 'token', '', 'done'",
        "    'n', whole(tokens), 'done'",
    ),
    _lua(
        "a cancelled job goes back to the queue",
        "upkeep",
        "  if end_if_due(books, key, record, now, keeps) then return end\n  if number(record.attempts)",
        "  if number(record.attempts)",
    ),
    _lua(
        "a lost worker is not counted",
        "upkeep",
        "  record.attempts = whole(number(record.attempts) + 1)\n",
        "",
    ),
    _lua(
        "a living worker's job is taken back",
        "upkeep",
        "name(tag, 'lease'), '-inf', now, 'LIMIT'",
        "name(tag, 'lease'), '-inf', '+inf', 'LIMIT'",
    ),
)

-- Part 3 of 6: how a job ends, by its worker's word or without one. Always one terminal entry.

-- What was published so far, as JSON: the choices of the answer, and those of the terminal entry.
local function published(o, choices, reason)
  local kept = {}
  for i = 0, choices - 1 do kept[i] = {texts = {}, ids = {}, logprobs = {}, finish = reason} end
  local entries = redis.pcall('XRANGE', o, '-', '+')
  if entries.err then entries = {} end
  for _, entry in ipairs(entries) do
    local fields = table_of(entry[2])
    local choice = kept[tonumber(fields.i) or -1]
    if choice then
      choice.texts[#choice.texts + 1] = fields.t
      if fields.k and fields.k ~= '' then choice.ids[#choice.ids + 1] = fields.k end
      if fields.l then choice.logprobs[#choice.logprobs + 1] = fields.l:match('^%[(.+)%]$') end
      if fields.e and fields.e ~= '' then choice.finish = fields.e end
    end
  end
  local answers, ends = {}, {}
  for i = 0, choices - 1 do
    local choice = kept[i]
    local finish = cjson.encode(choice.finish)
    answers[i + 1] = '{"text":' .. cjson.encode(table.concat(choice.texts)) .. ',"token_ids":['
      .. table.concat(choice.ids, ',') .. '],"finish_reason":' .. finish .. ',"logprobs":['
      .. table.concat(choice.logprobs, ',') .. ']}'
    ends[i + 1] = '{"finish_reason":' .. finish .. ',"tail":""}'
  end
  return '[' .. table.concat(answers, ',') .. ']', '[' .. table.concat(ends, ',') .. ']'
end

-- Rewrites a token stream without what lies beyond `tokens`-`part`. An id there is a stranger's, since only we
-- count tokens, and in the way of ours: the server wants ids that grow. Ours keep theirs, so cursors stay good.
-- Says whether it is a stream at all.
local function drop_beyond(o, tokens, part)
  local entries = redis.pcall('XRANGE', o, '-', '+')
  if entries.err then return false end
  local left_ms = redis.call('PTTL', o)
  redis.call('DEL', o)
  for _, entry in ipairs(entries) do
    local ms, sequence = entry[1]:match('^(%d+)%-(%d+)$')
    ms, sequence = tonumber(ms), tonumber(sequence)
    local is_within = ms < tokens or (ms == tokens and sequence <= part)
    if is_within and #entry[2] <= 10 then redis.call('XADD', o, entry[1], unpack(entry[2])) end
  end
  if left_ms > 0 then redis.call('PEXPIRE', o, left_ms) end
  return true
end

-- Appends the terminal entry; never fails, since a job without one would hang its readers.
local function append_terminal(o, tokens, part, terminal)
  local function add()
    return redis.pcall('XADD', o, tokens .. '-' .. part, 'i', '-1', 't', '', 'k', '', 'e', terminal)
  end
  if type(add()) == 'string' then return end
  if not drop_beyond(o, tonumber(tokens), tonumber(part) - 1) then redis.call('DEL', o) end
  add()
end

local function bury(tag, key, record, reason)
  redis.call('XADD', name(tag, 'dlq'), 'MAXLEN', DEAD_LETTERS_KEPT, '*', 'job', key, 'tenant',
    record.tenant or '', 'reason', reason, 'attempts', record.attempts or '0', 'tokens', record.n or '0')
end

-- Closes the books of a job. `e`: reason, terminal, result, error (JSON or ''), tokens, part, dead (reason or '').
local function close(tag, key, record, e, now, stream_keep_ms, record_keep_ms)
  local j, o = name(tag, 'j', key), name(tag, 'o', key)
  append_terminal(o, e.tokens, e.part, e.terminal)
  redis.call('SET', name(tag, 'r', key), e.result, 'PX', record_keep_ms)
  redis.call('HSET', j, 'state', 'finished', 'reason', e.reason, 'error', e.error, 'finished', now)
  redis.call('PEXPIRE', j, record_keep_ms)
  redis.call('PEXPIRE', name(tag, 'p', key), record_keep_ms)
  redis.call('PEXPIRE', o, stream_keep_ms)
  redis.call('ZREM', name(tag, 'lease'), key)
  redis.call('ZREM', name(tag, 'due'), key)
  if e.dead ~= '' then bury(tag, key, record, e.dead) end
end

-- Ends a job outside a worker: what was published so far becomes its answer. `code` and `message`: its error.
local function end_job(tag, key, record, reason, now, keeps, code, message)
  local n, choices = number(record.n), number(record.choices)
  local answers, ends = published(name(tag, 'o', key), choices, reason)
  local problem = ''
  if code then
    problem = '{"code":' .. cjson.encode(code) .. ',"message":' .. cjson.encode(message) .. ',"param":null}'
  end
  local rest = '"usage":{"prompt_tokens":0,"completion_tokens":' .. string.format('%.0f', n)
    .. ',"cached_tokens":0},"error":' .. (code and problem or 'null') .. '}'
  local head = '{"reason":' .. cjson.encode(reason) .. ',"choices":'
  close(tag, key, record, {
    reason = reason, error = problem, dead = code or '',
    terminal = head .. ends .. ',' .. rest, result = head .. answers .. ',' .. rest,
    tokens = string.format('%.0f', n), part = string.format('%.0f', number(record.part) + 1),
  }, now, keeps[1], keeps[2])
  hint(tag, {key})
end

-- Ends a job that waits and was cancelled or is past its deadline; says whether it did.
local function end_if_due(tag, key, record, now, keeps)
  if is_cancelled(record) then
    end_job(tag, key, record, 'cancelled', now, keeps)
  elseif is_past_deadline(record, now) then
    end_job(tag, key, record, 'deadline', now, keeps)
  else
    return false
  end
  return true
end

-- Puts a running job back in its queue.
local function requeue(tag, key, record)
  local j = name(tag, 'j', key)
  redis.call('HSET', j, 'state', 'queued', 'token', '', 'worker', '', 'entry', '')
  redis.call('ZREM', name(tag, 'lease'), key)
  redis.call('RPUSH', name(tag, 'back', record.band), key)
  if number(record.deadline) > 0 then
    redis.call('ZADD', name(tag, 'due'), record.deadline, key)
  end
  redis.pcall('XADD', name(tag, 'wake'), 'MAXLEN', 8, '*', 'job', key)
end

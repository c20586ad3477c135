-- Part 5 of 6: what a worker says about its jobs. Every write is fenced by the claim token.

local function outcome(record)
  return is_cancelled(record) and 'cancelled' or 'ok'
end

-- The part of the record that a token write needs.
local function load_for_write(tag, key)
  local values = redis.pcall('HMGET', name(tag, 'j', key), 'state', 'token', 'n', 'part', 'cancel', 'deadline')
  if values.err then return nil end
  return {state = values[1], token = values[2], n = number(values[3]), part = number(values[4]),
    cancel = values[5] or nil, deadline = values[6] or nil}
end

-- Appends the entry whose 7 arguments start at args[at]: tokens, part, i, t, k, e, l.
local function add(o, args, at)
  local id = args[at] .. '-' .. args[at + 1]
  if args[at + 6] == '' then
    return redis.pcall('XADD', o, id, 'i', args[at + 2], 't', args[at + 3], 'k', args[at + 4], 'e', args[at + 5])
  end
  return redis.pcall('XADD', o, id, 'i', args[at + 2], 't', args[at + 3], 'k', args[at + 4],
    'e', args[at + 5], 'l', args[at + 6])
end

-- Appends `count` entries from args[at] on. False: it is no stream, so what was published is gone.
local function append(tag, key, record, args, at, count, record_keep_ms)
  local o, n, part = name(tag, 'o', key), record.n, record.part
  local is_new = n == 0 and part == 0
  for entry = at, at + (count - 1) * 7, 7 do
    local tokens, entry_part = tonumber(args[entry]), tonumber(args[entry + 1])
    if tokens > n or (tokens == n and entry_part > part) then
      local added = add(o, args, entry)
      if type(added) ~= 'string' and drop_beyond(o, n, part) then added = add(o, args, entry) end
      if type(added) ~= 'string' then return false end
      n, part = tokens, entry_part
    end
  end
  if n ~= record.n or part ~= record.part then
    record.n, record.part = n, part
    redis.call('HSET', name(tag, 'j', key), 'n', n, 'part', part)
    if is_new and number(record.deadline) > 0 then
      redis.call('PEXPIREAT', o, record.deadline + record_keep_ms)
    end
  end
  return true
end

-- FCALL headway_emit 1 {lane} <record retention ms>, then for each job: <key> <token> <entries>, and 7 arguments
-- for each entry -> one of ok | cancelled | lost for each job
register('headway_emit', function(keys, args)
  local tag, keep_ms, at = keys[1], tonumber(args[1]), 2
  local outcomes, written = {}, {}
  while at <= #args do
    local key, count = args[at], tonumber(args[at + 2])
    local record = load_for_write(tag, key)
    local result = 'lost'
    if owns(record, args[at + 1]) and append(tag, key, record, args, at + 3, count, keep_ms) then
      result = outcome(record)
      written[#written + 1] = key
    end
    outcomes[#outcomes + 1] = result
    at = at + 3 + count * 7
  end
  hint(tag, written)
  return outcomes
end, {'allow-oom'})

-- FCALL headway_finish 1 {lane} <key> <token> <stream retention ms> <record retention ms> <reason> <terminal JSON>
--       <result JSON> <error JSON or ''> <dead letter or ''> <tokens> <part> <entries>, and 7 arguments for each entry
-- -> ok | lost
register('headway_finish', function(keys, args)
  local tag, key, token = keys[1], args[1], args[2]
  local record = load_record(tag, key)
  if not record then return 'lost' end
  if record.state == 'finished' and token ~= '' and record.token == token then return 'ok' end -- a repeat
  if not owns(record, token) then return 'lost' end
  mend(tag)
  record.n, record.part = number(record.n), number(record.part)
  append(tag, key, record, args, 13, tonumber(args[12]), tonumber(args[4]))
  local tokens, part = args[10], tonumber(args[11])
  if tonumber(tokens) <= record.n then
    tokens, part = string.format('%.0f', record.n), math.max(part, record.part + 1)
  end
  close(tag, key, record, {
    reason = args[5], terminal = args[6], result = args[7], error = args[8], dead = args[9],
    tokens = tokens, part = string.format('%.0f', part),
  }, now_ms(), tonumber(args[3]), tonumber(args[4]))
  hint(tag, {key})
  return 'ok'
end, {'allow-oom'})

-- FCALL headway_renew 1 {lane} <lease ms>, then <key> <token> for each job -> ok | cancelled | lost for each
register('headway_renew', function(keys, args)
  local tag, until_ms = keys[1], now_ms() + tonumber(args[1])
  local outcomes = {}
  mend(tag)
  for at = 2, #args, 2 do
    local record = load_for_write(tag, args[at])
    local result = 'lost'
    if owns(record, args[at + 1]) then
      redis.call('ZADD', name(tag, 'lease'), until_ms, args[at])
      result = outcome(record)
    end
    outcomes[#outcomes + 1] = result
  end
  return outcomes
end, {'allow-oom'})

-- FCALL headway_release 1 {lane} <stream retention ms> <record retention ms>, then <key> <token> for each job
-- -> ok | lost for each
register('headway_release', function(keys, args)
  local tag, now, keeps = keys[1], now_ms(), {tonumber(args[1]), tonumber(args[2])}
  local outcomes = {}
  mend(tag)
  for at = 3, #args, 2 do
    local record = load_record(tag, args[at])
    local result = 'lost'
    if owns(record, args[at + 1]) then
      result = 'ok'
      redis.call('HSET', name(tag, 'j', args[at]), 'token', '', 'worker', '')
      if not end_if_due(tag, args[at], record, now, keeps) then requeue(tag, args[at], record) end
    end
    outcomes[#outcomes + 1] = result
  end
  return outcomes
end, {'allow-oom'})

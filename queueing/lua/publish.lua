-- Part 6: what a worker says about its jobs. Every write is fenced by the claim token.

-- Whether a claim token is the one under which a job runs now: the record has none at any other time.
local function holds(tag, key, token)
  return token ~= '' and redis.pcall('HGET', name(tag, 'j', key), 'token') == token
end

-- Appends the entry whose 6 arguments start at args[at]: id, i, t, k, e, l. Most have neither another choice than
-- the first, nor an end, nor log-probabilities, and a field that says nothing is left out: each costs time and memory.
local function add_entry(o, args, at)
  local i, e, l = args[at + 1], args[at + 4], args[at + 5]
  if i == '0' and e == '' and l == '' then
    return redis.pcall('XADD', o, args[at], 't', args[at + 2], 'k', args[at + 3])
  end
  local entry = {'t', args[at + 2], 'k', args[at + 3]}
  local function say(field, value)
    entry[#entry + 1], entry[#entry + 2] = field, value
  end
  if i ~= '0' then say('i', i) end
  if e ~= '' then say('e', e) end
  if l ~= '' then say('l', l) end
  return redis.pcall('XADD', o, args[at], unpack(entry))
end

-- Appends the entry at args[at] although the server refused it. It refuses an id that is not larger than the last one:
-- a repeat is left out, and an entry that a stranger's id stands before goes in once that is dropped.
-- False: it is no stream, so what was published is gone.
local function add_again(o, args, at)
  local last_tokens, last_part = last_position(o)
  local tokens, part = args[at]:match('^(%d+)%-(%d+)$')
  tokens, part = tonumber(tokens), tonumber(part)
  if not tokens then return false end
  if tokens < last_tokens or (tokens == last_tokens and part <= last_part) then return true end
  return drop_strangers(o) and type(add_entry(o, args, at)) == 'string'
end

local function append(o, args, at)
  return type(add_entry(o, args, at)) == 'string' or add_again(o, args, at)
end

-- Whether a token stream has fewer entries than its owner knows of.
local function is_behind(o, entries)
  return (tonumber(redis.pcall('XLEN', o)) or 0) < tonumber(entries)
end

-- Takes a job from an owner who knows more of the token stream than there is: a failover, a disk or a stranger's DEL
-- lost what was acknowledged, and to go on would leave a gap. The next owner begins at what is there.
local function disown(tag, key)
  redis.call('HSET', name(tag, 'j', key), 'token', '')
  shared(tag, 'ZADD', name(tag, 'lease'), 0, key)
end

-- Notes when a job's first token came, once: for its timeline.
local function note_first(j)
  if not redis.call('HGET', j, 'first') then redis.call('HSET', j, 'first', whole(now_ms())) end
end

-- What is wrong with an emit's arguments; nil: nothing.
local function wrong_emit(args)
  for at = 3, #args, 9 do
    if not tonumber(args[at]) then return invalid('entries_before', 'must be a number') end
  end
  return ragged(args, 1, 'key, token, entries before, id, i, t, k, e, l')
end

-- FCALL headway_emit 1 {lane}, then for each entry: <key> <token> <entries before> <tokens>-<part> <i> <t> <k> <e> <l>
-- -> the keys of jobs that are lost, usually none. The most frequent call by far: two reads and one write for each
-- entry, few arguments, and one hint for all.
register('headway_emit', function(keys, args)
  local tag, problem = keys[1], wrong_emit(args)
  if problem then return problem end
  local stream_prefix, record_prefix, try = name(tag, 'o', ''), name(tag, 'j', ''), redis.pcall
  local lost, written, last, o, is_ours = {}, {}, nil, nil, false
  for at = 1, #args, 9 do
    local key, token = args[at], args[at + 1]
    if key ~= last then
      last, o = key, stream_prefix .. key
      is_ours = token ~= '' and try('HGET', record_prefix .. key, 'token') == token
      if is_ours and (tonumber(try('XLEN', o)) or 0) < tonumber(args[at + 2]) then
        disown(tag, key)
        is_ours = false
      end
      if is_ours then written[#written + 1] = key else lost[#lost + 1] = key end
    end
    if is_ours then
      local is_in = args[at + 4] == '0' and args[at + 7] == '' and args[at + 8] == '' -- most: no call for them
        and type(try('XADD', o, args[at + 3], 't', args[at + 5], 'k', args[at + 6])) == 'string'
      if not (is_in or append(o, args, at + 3)) then
        is_ours = false
        lost[#lost + 1] = key
      elseif args[at + 2] == '0' then
        note_first(record_prefix .. key)
      end
    end
  end
  hint(tag, written)
  return lost
end, {'allow-oom'})

local FINISH_COUNTS = {
  {'tokens', 0, 1e15}, {'part', 0, 1e15}, {'prompt_tokens', 0, 1e15, 0}, {'served_tokens', -1e15, 1e15, 0},
  {'entries_before', 0, 1e15},
}

-- FCALL headway_finish 1 {lane} <key> <token> <stream retention ms> <record retention ms> <reason> <terminal JSON>
--       <result JSON> <error JSON or ''> <dead letter or ''> <tokens> <part> <prompt tokens> <served tokens>
--       <entries before>, then for each last entry: <tokens>-<part> <i> <t> <k> <e> <l>
-- -> ok | lost
register('headway_finish', function(keys, args)
  local tag, key, token = keys[1], args[1], args[2]
  local keeps, problem = figures(args, 3, {STREAM_KEPT, RECORD_KEPT})
  if problem then return problem end
  local counts
  counts, problem = figures(args, 10, FINISH_COUNTS)
  problem = problem or ragged(args, 15, 'id, i, t, k, e, l')
  if problem then return problem end
  local record = load_record(tag, key)
  if not record then return 'lost' end
  if record.state == 'finished' and token ~= '' and record.done == token then return 'ok' end -- a repeat
  local o = name(tag, 'o', key)
  if not owns(record, token) then return 'lost' end
  if is_behind(o, counts[5]) then
    disown(tag, key)
    return 'lost'
  end
  local books = open_books(tag)
  for at = 15, #args, 6 do append(o, args, at) end
  if args[14] == '0' and #args > 14 then note_first(name(tag, 'j', key)) end
  close(books, key, record, {
    reason = args[5], terminal = args[6], result = args[7], error = args[8], dead = args[9],
    tokens = counts[1], part = counts[2], prompt = whole(counts[3]), served = tonumber(args[13]),
  }, now_ms(), keeps)
  save(books)
  hint(tag, {key})
  return 'ok'
end, {'allow-oom'})

-- FCALL headway_renew 1 {lane} <lease ms>, then <key> <token> for each job -> ok | cancelled | lost for each
register('headway_renew', function(keys, args)
  local lease, problem = figures(args, 1, {LEASE})
  if problem then return problem end
  local tag, until_ms = keys[1], now_ms() + lease[1]
  local outcomes = {}
  for at = 2, #args, 2 do
    local result = 'lost'
    if holds(tag, args[at], args[at + 1]) then
      shared(tag, 'ZADD', name(tag, 'lease'), until_ms, args[at])
      local reason = redis.call('HGET', name(tag, 'j', args[at]), 'cancel')
      result = reason and reason ~= '' and 'cancelled' or 'ok'
    end
    outcomes[#outcomes + 1] = result
  end
  return outcomes
end, {'allow-oom'})

-- FCALL headway_release 1 {lane} <stream retention ms> <record retention ms>, then <key> <token> for each job
-- -> ok | lost for each
register('headway_release', function(keys, args)
  local keeps, problem = figures(args, 1, {STREAM_KEPT, RECORD_KEPT})
  if problem then return problem end
  local tag, now = keys[1], now_ms()
  local outcomes, books = {}, open_books(tag)
  for at = 3, #args, 2 do
    local key, result = args[at], 'lost'
    local record = load_record(tag, key)
    if owns(record, args[at + 1]) then
      result = 'ok'
      unclaim(books, key, record, 'released', now)
      if not end_if_due(books, key, record, now, keeps) then requeue(books, key, record) end
    end
    outcomes[#outcomes + 1] = result
  end
  save(books)
  return outcomes
end, {'allow-oom'})

-- Part 8: jobs posted again. A job's end is final, so a second try is a new job with the same body.

-- What is wrong with a dead letter's entry id; nil: nothing.
local function wrong_id(id)
  local ms, count = (id or ''):match('^(%d+)%-(%d+)$')
  if not ms or #ms > 19 or #count > 19 then return invalid('id', 'must be a dead letter\'s, such as 1736942400000-0') end
end

-- Accepts the body of `old_key` as `new_key`. Its idempotency key does not count: this repeat is meant.
local function post_again(tag, old_key, new_key, args)
  if not is_job_key(new_key) then
    return invalid('key', 'use 1 to 64 characters out of A-Z a-z 0-9 _ -')
  end
  if is_taken(tag, new_key) then return {'exists', new_key} end
  local body = redis.pcall('GET', name(tag, 'p', old_key))
  if type(body) ~= 'string' then return {'unknown', old_key} end
  local job, problem = parse(tag, body)
  problem = problem or wrong_field(job)
  local limits
  if not problem then limits, problem = limits_of(args, 3) end
  if problem then return problem end
  local books, exact, cost = open_books(tag), exact_ms(), cost_of(job, body)
  local place = place_of(job, limits, exact)
  return refusal(books, job, cost, limits, place)
    or accept(books, new_key, body, job, cost, limits, exact, place, old_key)
end

-- FCALL headway_retry 1 {lane} <key> <new key> [max jobs] … as headway_submit
-- -> created <new key> | exists <new key> | unknown <key> | running <key> (not ended yet) | full …
register('headway_retry', function(keys, args)
  local tag, key = keys[1], args[1]
  local state = redis.pcall('HGET', name(tag, 'j', key), 'state')
  if state == 'queued' or state == 'running' then return {'running', key} end
  return post_again(tag, key, args[2], args)
end)

-- FCALL headway_forget 1 {lane} <key>: nothing of a job that has ended is kept, its dead letter's body neither
-- -> ok | unknown | running (not ended yet)
register('headway_forget', function(keys, args)
  local tag, key = keys[1], args[1]
  if not is_job_key(key) then return 'unknown' end
  local state = redis.pcall('HGET', name(tag, 'j', key), 'state')
  if state == 'queued' or state == 'running' then return 'running' end
  local removed = 0
  for _, kind in ipairs({'j', 'p', 'r', 'o'}) do removed = removed + redis.call('DEL', name(tag, kind, key)) end
  return removed > 0 and 'ok' or 'unknown'
end, {'allow-oom'})

-- FCALL headway_redrive 1 {lane} <dead letter's entry id> <new key> [max jobs] … as headway_submit -> as headway_retry
register('headway_redrive', function(keys, args)
  local tag, id, new_key, problem = keys[1], args[1], args[2], wrong_id(args[1])
  if problem then return problem end
  local entry = shared(tag, 'XRANGE', name(tag, 'dlq'), id, id)[1]
  if not entry then
    local exists = is_job_key(new_key) and is_taken(tag, new_key)
    return exists and {'exists', new_key} or {'unknown', id} -- `exists`: a repeat of this call
  end
  local key = table_of(entry[2]).job
  if not is_job_key(key) then return {'unknown', id} end
  local reply = post_again(tag, key, new_key, args)
  if reply[1] == 'created' then redis.call('XDEL', name(tag, 'dlq'), id) end
  return reply
end)

-- FCALL headway_purge 1 {lane} [dead letter's entry id] … -> how many were removed; without ids: all
register('headway_purge', function(keys, args)
  local tag, removed = keys[1], 0
  local dlq, entries = name(tag, 'dlq'), {}
  if #args == 0 then entries = shared(tag, 'XRANGE', dlq, '-', '+') end
  for _, id in ipairs(args) do
    local problem = wrong_id(id)
    if problem then return problem end
    for _, entry in ipairs(shared(tag, 'XRANGE', dlq, id, id)) do entries[#entries + 1] = entry end
  end
  for _, entry in ipairs(entries) do
    removed = removed + redis.call('XDEL', dlq, entry[1])
    local key = table_of(entry[2]).job
    if is_job_key(key) then -- its body was kept for a redrive only
      local left_ms = redis.call('PTTL', name(tag, 'j', key))
      if left_ms > 0 then
        redis.call('PEXPIRE', name(tag, 'p', key), left_ms)
      elseif left_ms == -2 then
        redis.call('DEL', name(tag, 'p', key))
      end
    end
  end
  return removed
end, {'allow-oom'})

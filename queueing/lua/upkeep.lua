-- Part 6 of 6: cancel, dead workers, deadlines of waiting jobs, the fleet's cards.

local CONTROL_KEPT_MS = 3600000

-- FCALL headway_cancel 1 {lane} <key> <reason> [stream retention ms] [record retention ms]
-- -> queued (ended at once) | running (its worker was told) | finished | unknown
register('headway_cancel', function(keys, args)
  local tag, key = keys[1], args[1]
  local keeps = {tonumber(args[3]) or 300000, tonumber(args[4]) or 3600000}
  local record = load_record(tag, key)
  if not record then return 'unknown' end
  if not is_queued(record) and not is_running(record) then return 'finished' end
  mend(tag)
  if not is_cancelled(record) then
    record.cancel = args[2] ~= nil and args[2] ~= '' and args[2]:sub(1, 256) or 'cancelled'
    redis.call('HSET', name(tag, 'j', key), 'cancel', record.cancel)
  end
  if is_queued(record) then
    dequeue(tag, key, record)
    end_job(tag, key, record, 'cancelled', now_ms(), keeps)
    return 'queued'
  end
  local control = name(tag, 'ctl', record.worker)
  expect(tag, control, 'stream')
  redis.call('XADD', control, 'MAXLEN', 1000, '*', 'job', key)
  redis.call('PEXPIRE', control, CONTROL_KEPT_MS)
  return 'running'
end, {'allow-oom'})

-- Takes a job back from a worker that is gone.
local function take_back(tag, key, record, now, max_attempts, keeps, requeued, dead)
  record.attempts = string.format('%.0f', number(record.attempts) + 1)
  redis.call('HSET', name(tag, 'j', key), 'attempts', record.attempts, 'token', '', 'worker', '')
  if end_if_due(tag, key, record, now, keeps) then return end
  if number(record.attempts) < max_attempts then
    requeue(tag, key, record)
    requeued[#requeued + 1] = key
    return
  end
  end_job(tag, key, record, 'error', now, keeps, 'too_many_attempts',
    'its worker was lost ' .. record.attempts .. ' times while running it')
  dead[#dead + 1] = key
end

local function reap(tag, max_attempts, keeps, limit)
  local now, requeued, dead = now_ms(), {}, {}
  mend(tag)
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', name(tag, 'lease'), '-inf', now, 'LIMIT', 0, limit)) do
    local record = load_record(tag, key)
    if record and is_running(record) then
      take_back(tag, key, record, now, max_attempts, keeps, requeued, dead)
    else
      redis.call('ZREM', name(tag, 'lease'), key)
    end
  end
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', name(tag, 'due'), '-inf', now, 'LIMIT', 0, limit)) do
    local record = load_record(tag, key)
    if record and is_queued(record) then
      dequeue(tag, key, record)
      end_if_due(tag, key, record, now, keeps)
    else
      redis.call('ZREM', name(tag, 'due'), key)
    end
  end
  return {requeued, dead}
end

-- FCALL headway_reap 1 {lane} <max attempts> <stream retention ms> <record retention ms>
-- -> keys put back, keys given up. At most 100 of each kind per call, so that nobody waits long for the server.
register('headway_reap', function(keys, args)
  return reap(keys[1], tonumber(args[1]), {tonumber(args[2]), tonumber(args[3])}, 100)
end, {'allow-oom'})

-- FCALL headway_expire_worker 1 {lane} <worker> <max attempts> <stream retention ms> <record retention ms>
-- -> how many jobs were taken from it
register('headway_expire_worker', function(keys, args)
  local tag, held, lease = keys[1], 0, name(keys[1], 'lease')
  mend(tag)
  for _, key in ipairs(redis.call('ZRANGE', lease, 0, -1)) do
    if redis.pcall('HGET', name(tag, 'j', key), 'worker') == args[1] then
      redis.call('ZADD', lease, 0, key)
      held = held + 1
    end
  end
  reap(tag, tonumber(args[2]), {tonumber(args[3]), tonumber(args[4])}, held + 100)
  return held
end, {'allow-oom'})

-- FCALL headway_heartbeat 1 {fleet} <worker> <card JSON> <ttl ms> <model>
register('headway_heartbeat', function(keys, args)
  local tag, now = keys[1], now_ms()
  for kind, of in pairs({workers = 'zset', models = 'set'}) do
    if redis.call('TYPE', name(tag, kind)).ok ~= of then redis.call('DEL', name(tag, kind)) end
  end
  redis.call('SET', name(tag, 'w', args[1]), args[2], 'PX', args[3])
  redis.call('ZADD', name(tag, 'workers'), now + args[3], args[1])
  redis.call('ZREMRANGEBYSCORE', name(tag, 'workers'), '-inf', now)
  redis.call('SADD', name(tag, 'models'), args[4])
  return 'ok'
end, {'allow-oom'})

-- Part 7: cancel, dead workers, deadlines of waiting jobs, rates and weights, the fleet's cards.

local CONTROL_KEPT_MS = 3600000
local RATE_DECAY = 0.99 -- by report: a worker's best rate is halved after some 70 reports
local PRESSED_GAIN = 0.2 -- of the newest report, while jobs wait

-- A worker's rate by its newest report. Its best lately, since one with little to do shows little; but while jobs wait,
-- every worker does what it can, and the mean of that is what a new job will meet. The mean begins at the better of
-- both: what it showed with little to do would for seconds make a burst look hopeless. No token in a second says nothing:
-- a long prompt may be in work.
local function rate_after(best, told, is_pressed, was_pressed)
  if not is_pressed then return math.max(told, best * RATE_DECAY) end
  if not was_pressed or told <= 0 or best <= 0 then return math.max(told, best) end
  return best + PRESSED_GAIN * (told - best)
end

-- Whether jobs wait now and did at the report before this one; notes it in the lane's books.
local function note_pressure(tag, now)
  local books = open_books(tag)
  local waits, waited = waiting_jobs(books) > 0, get(books, 'waited') == 1
  if waits ~= waited then put(books, 'waited', waits and 1 or 0) end
  if waits and waited then put(books, 'pressed', now) end
  save(books)
  return waits and waited
end

-- FCALL headway_cancel 1 {lane} <key> <reason> [stream retention ms] [record retention ms]
-- -> queued (ended at once) | running (its worker was told) | finished | unknown
register('headway_cancel', function(keys, args)
  local tag, key = keys[1], args[1]
  local keeps, problem = figures(args, 3, {
    {'stream_retention_ms', 1, MAX_MS, 300000}, {'record_retention_ms', 1, MAX_MS, 3600000},
  })
  if problem then return problem end
  local record = load_record(tag, key)
  if not record then return 'unknown' end
  if not is_queued(record) and not is_running(record) then return 'finished' end
  if not is_cancelled(record) then
    record.cancel = args[2] ~= nil and args[2] ~= '' and args[2]:sub(1, 256) or 'cancelled'
    redis.call('HSET', name(tag, 'j', key), 'cancel', record.cancel)
  end
  if is_queued(record) then
    local books, now = open_books(tag), now_ms()
    dequeue(books, key, record, now)
    end_job(books, key, record, 'cancelled', now, keeps)
    save(books)
    return 'queued'
  end
  local control = name(tag, 'ctl', record.worker)
  shared(tag, 'XADD', control, 'MAXLEN', 1000, '*', 'job', key)
  redis.call('PEXPIRE', control, CONTROL_KEPT_MS)
  return 'running'
end, {'allow-oom'})

-- Takes a job back from a worker that is gone.
local function take_back(books, key, record, now, max_attempts, keeps, requeued, dead)
  record.attempts = whole(number(record.attempts) + 1)
  unclaim(books, key, record, 'lost', now)
  if end_if_due(books, key, record, now, keeps) then return end
  if number(record.attempts) < max_attempts then
    requeue(books, key, record)
    requeued[#requeued + 1] = key
    return
  end
  end_job(books, key, record, 'error', now, keeps, 'too_many_attempts',
    'its worker was lost ' .. record.attempts .. ' times while running it')
  dead[#dead + 1] = key
end

-- Whether the books say that more waits or runs than the indexes do, or the other way round.
local function check_books(books, now)
  local tag = books.tag
  for _, band in ipairs(BANDS) do
    local waits = shared(tag, 'ZCARD', name(tag, 'turn', band)) > 0
    local returned = shared(tag, 'LLEN', name(tag, 'back', band))
    if returned < get(books, 'returned:' .. band) or not waits and get(books, 'jobs:' .. band) > 0 then
      note_loss(books)
      rebuild(books, band, now)
    elseif waits and get(books, 'jobs:' .. band) == 0 then
      recount(books, band)
    end
  end
  local running = shared(tag, 'ZCARD', name(tag, 'lease'))
  if running < get(books, 'running') then note_loss(books) end
  if running ~= get(books, 'running') then put(books, 'running', running) end
end

-- What others read without our functions must be readable: their reads would fail for ever.
local function mend(tag)
  for _, kind in ipairs({'dlq', 'recent', 'settle', 'wake'}) do shared(tag, 'XLEN', name(tag, kind)) end
  shared(tag, 'GET', name(tag, 'rate'))
end

local function reap(tag, max_attempts, keeps, limit)
  local now, requeued, dead, books = now_ms(), {}, {}, open_books(tag)
  for _, key in ipairs(shared(tag, 'ZRANGEBYSCORE', name(tag, 'lease'), '-inf', now, 'LIMIT', 0, limit)) do
    local record = load_record(tag, key)
    if record and is_running(record) then
      take_back(books, key, record, now, max_attempts, keeps, requeued, dead)
    else
      shared(tag, 'ZREM', name(tag, 'lease'), key)
      add(books, 'running', -1)
      if not record then -- somebody deleted it while the job ran: its readers wait for an end
        bury_stray(books, 'standard', key, now, keeps)
        dead[#dead + 1] = is_job_key(key) and key or nil
      end
    end
  end
  for _, key in ipairs(shared(tag, 'ZRANGEBYSCORE', name(tag, 'due'), '-inf', now, 'LIMIT', 0, limit)) do
    local record = load_record(tag, key)
    if record and is_queued(record) then
      dequeue(books, key, record, now)
      end_if_due(books, key, record, now, keeps)
    else
      shared(tag, 'ZREM', name(tag, 'due'), key)
    end
  end
  forget_tenants(tag, now, limit)
  mend(tag)
  check_books(books, now)
  save(books)
  return {requeued, dead}
end

local SEARCH_MS = 60000 -- after which somebody else searches: whoever did died over it, or may not

-- Who gets a ticket searches for lost jobs, alone.
local function search_ticket(tag)
  local lane, now = name(tag, 'lane'), now_ms()
  local lost = number(shared(tag, 'HGET', lane, 'lost'))
  if lost <= 0 or lost > now and lost <= now + SEARCH_MS then return 0 end
  shared(tag, 'HSET', lane, 'lost', whole(now + SEARCH_MS))
  return now + SEARCH_MS
end

local REAP_FIGURES = {{'max_attempts', 1, 1e6}, STREAM_KEPT, RECORD_KEPT}

-- FCALL headway_reap 1 {lane} <max attempts> <stream retention ms> <record retention ms>
--       ['search': the caller looks for jobs that are in no index, if there may be any]
-- -> keys put back, keys given up[, a ticket for headway_restore, or 0: none is lost].
-- At most 100 of each kind per call, so that nobody waits long for the server.
register('headway_reap', function(keys, args)
  local found, problem = figures(args, 1, REAP_FIGURES)
  if problem then return problem end
  local reply = reap(keys[1], found[1], {found[2], found[3]}, 100)
  if args[4] == 'search' then reply[3] = search_ticket(keys[1]) end
  return reply
end, {'allow-oom'})

-- FCALL headway_expire_worker 1 {lane} <worker> <max attempts> <stream retention ms> <record retention ms>
-- -> how many jobs were taken from it
register('headway_expire_worker', function(keys, args)
  local found, problem = figures(args, 2, REAP_FIGURES)
  if problem then return problem end
  local tag, held, lease = keys[1], 0, name(keys[1], 'lease')
  for _, key in ipairs(shared(tag, 'ZRANGE', lease, 0, -1)) do
    if redis.pcall('HGET', name(tag, 'j', key), 'worker') == args[1] then
      shared(tag, 'ZADD', lease, 0, key)
      held = held + 1
    end
  end
  reap(tag, found[1], {found[2], found[3]}, held + 100)
  return held
end, {'allow-oom'})

-- FCALL headway_mend 1 {lane} <worker>: makes sure that what a worker blocks on can be read.
register('headway_mend', function(keys, args)
  local tag = keys[1]
  shared(tag, 'XLEN', name(tag, 'wake'))
  shared(tag, 'XLEN', name(tag, 'ctl', args[1]))
  return 'ok'
end, {'allow-oom'})

-- FCALL headway_weights 1 {lane}, then <tenant> <weight> for each tenant: replaces all weights.
register('headway_weights', function(keys, args)
  local weights, problem = name(keys[1], 'weights'), ragged(args, 1, 'tenant, weight')
  if problem then return problem end
  redis.call('DEL', weights)
  for at = 1, #args, 2 do redis.call('HSET', weights, args[at], args[at + 1]) end
  return 'ok'
end, {'allow-oom'})

-- FCALL headway_report 1 {lane} <worker> <tokens per second> <ttl ms>: what the lane's workers can do, for predictions.
register('headway_report', function(keys, args)
  local ttl, problem = figures(args, 3, {{'ttl_ms', 1, MAX_MS}})
  if problem then return problem end
  local tag, now, rate = keys[1], now_ms(), number(args[2])
  local rates, until_ms, total = name(tag, 'rates'), now + ttl[1], 0
  local known = table_of(shared(tag, 'HGETALL', rates))
  local earlier, is_pressed = known[args[1]] or '', note_pressure(tag, now)
  rate = rate_after(tonumber(earlier:match('^(%S+) ')) or 0, rate, is_pressed, earlier:match(' pressed$'))
  known[args[1]] = rate .. ' ' .. whole(until_ms) .. (is_pressed and ' pressed' or '')
  shared(tag, 'HSET', rates, args[1], known[args[1]])
  for worker, told in pairs(known) do
    local each, till = told:match('^(%S+) (%d+)')
    if till and tonumber(till) > now then
      total = total + number(each)
    else
      shared(tag, 'HDEL', rates, worker)
    end
  end
  redis.call('SET', name(tag, 'rate'), total, 'PX', ttl[1])
  return 'ok'
end, {'allow-oom'})

-- FCALL headway_heartbeat 1 {fleet} <worker> <card JSON> <ttl ms> <model>
register('headway_heartbeat', function(keys, args)
  local ttl, problem = figures(args, 3, {{'ttl_ms', 1, MAX_MS}})
  if problem then return problem end
  if not (args[4] and args[4] ~= '') then return invalid('model', 'must not be empty') end
  local tag, now = keys[1], now_ms()
  for kind, of in pairs({workers = 'zset', models = 'set'}) do
    if redis.call('TYPE', name(tag, kind)).ok ~= of then redis.call('DEL', name(tag, kind)) end
  end
  redis.call('SET', name(tag, 'w', args[1]), args[2], 'PX', ttl[1])
  redis.call('ZADD', name(tag, 'workers'), now + ttl[1], args[1])
  redis.call('ZREMRANGEBYSCORE', name(tag, 'workers'), '-inf', now)
  redis.call('SADD', name(tag, 'models'), args[4])
  return 'ok'
end, {'allow-oom'})

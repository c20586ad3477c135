-- Part 4 of 6: take jobs. The queue entry goes and the lease comes in one call, so no crash loses a job.

local MAX_DISCARDS = 200       -- queue entries that name no job, dropped per call before it answers
local MAX_REPLY_BYTES = 8388608 -- over it no further job is taken: the server builds a reply in memory
local AGED_EVERY = 4           -- see queueing/settings.py

local function head_of(tag, band)
  local key = redis.call('LINDEX', name(tag, 'back', band), 0)
  if key then
    return {band = band, key = key, at = number(redis.pcall('HGET', name(tag, 'j', key), 'created'))}
  end
  local entry = redis.call('XRANGE', name(tag, 'q', band), '-', '+', 'COUNT', 1)[1]
  if entry then
    return {band = band, entry = entry[1], fields = table_of(entry[2]), at = number(entry[1]:match('^%d+'))}
  end
end

-- The head to serve: the best band's, unless it is an aged one's turn. Second value: whether it went ahead.
local function choose(heads, ages, now, since_aged)
  local first, aged
  for _, band in ipairs(BANDS) do
    local head = heads[band]
    first = first or head
    if head and ages[band] and now - head.at > ages[band] and (not aged or head.at < aged.at) then
      aged = head
    end
  end
  if aged and since_aged >= AGED_EVERY - 1 then return aged, aged ~= first end
  return first, false
end

local function remove(tag, head)
  if head.entry then
    redis.call('XDEL', name(tag, 'q', head.band), head.entry)
    return head.fields.job
  end
  return redis.call('LPOP', name(tag, 'back', head.band))
end

-- A queue entry that names no job of ours: a record and a terminal entry if it has a key, a dead letter anyway.
local function bury_stray(tag, head, key, now, keeps)
  if not is_job_key(key) then
    local sample = cjson.encode(head.fields or {}):sub(1, 200):gsub('[^\32-\126]', '?')
    bury(tag, '', {}, 'malformed_entry: ' .. sample)
    return
  end
  local record = {
    model = tag:match('^{(.+):%d+}$'):gsub('%-%-', '/'), tenant = 'default', band = head.band, choices = 0,
    created = now,
  }
  for field, value in pairs(record) do redis.call('HSET', name(tag, 'j', key), field, value) end
  end_job(tag, key, record, 'error', now, keeps, 'unknown_job',
    'the queue entry names a job that was not submitted: use headway_submit')
end

local function item(tag, key, record, body)
  local entries = {}
  if number(record.n) > 0 then
    entries = redis.pcall('XRANGE', name(tag, 'o', key), '-', '+')
    if entries.err then entries = {} end
  end
  return {key, record.token, record.epoch, record.attempts, body, entries, record.seed or '0',
    record.created or '0', record.deadline or '0', record.cancel or ''}
end

-- The bytes of a reply's item that may be many: its body, and the entries published so far.
local function weight(item)
  local bytes = #item[5]
  for _, entry in ipairs(item[6]) do
    for _, part in ipairs(entry[2]) do bytes = bytes + #part end
  end
  return bytes
end

-- Gives one queued job to a worker.
local function open(tag, key, record, body, worker, token, now, lease_ms)
  record.state, record.worker, record.token = 'running', worker, token
  record.epoch = string.format('%.0f', number(record.epoch) + 1)
  record.attempts = record.attempts or '0'
  if number(record.started) == 0 then record.started = string.format('%.0f', now) end
  redis.call('HSET', name(tag, 'j', key), 'state', 'running', 'worker', worker, 'token', token,
    'epoch', record.epoch, 'started', record.started, 'entry', '')
  redis.call('ZADD', name(tag, 'lease'), now + lease_ms, key)
  redis.call('ZREM', name(tag, 'due'), key)
  return item(tag, key, record, body)
end

-- Jobs of this very claim, made earlier by a call whose reply was lost.
local function repeated(tag, worker, token)
  local items = {}
  local last = redis.call('GET', name(tag, 'c', worker))
  if not last then return items end
  local last_token, keys = last:match('^(%S+) (.*)$')
  if last_token ~= token then return items end
  for key in keys:gmatch('%S+') do
    local record = load_record(tag, key)
    local body = redis.pcall('GET', name(tag, 'p', key))
    if owns(record, token) and type(body) == 'string' then
      items[#items + 1] = item(tag, key, record, body)
    end
  end
  return items
end

-- Takes one queue entry; returns the reply's item, or nil if it was no job to run.
local function take(tag, head, worker, token, now, lease_ms, keeps)
  local key = remove(tag, head)
  local record = is_job_key(key) and load_record(tag, key)
  if not record or record.state == nil then
    bury_stray(tag, head, key, now, keeps)
    return nil
  end
  if not is_queued(record) then return nil end -- a second entry of a job that runs or has ended
  if end_if_due(tag, key, record, now, keeps) then return nil end
  local body = redis.pcall('GET', name(tag, 'p', key))
  if type(body) ~= 'string' then
    redis.call('DEL', name(tag, 'p', key))
    end_job(tag, key, record, 'error', now, keeps, 'body_missing', 'the body of the job is gone')
    return nil
  end
  return open(tag, key, record, body, worker, token, now, lease_ms)
end

-- FCALL headway_claim 1 {lane} <worker> <room> <token> <lease ms> <standard age ms> <batch age ms>
--       <stream retention ms> <record retention ms>
-- -> now, then for each job: key, token, epoch, attempts, body, entries, seed, created, deadline, cancel
register('headway_claim', function(keys, args)
  local tag, worker, room, token, lease_ms = keys[1], args[1], tonumber(args[2]), args[3], tonumber(args[4])
  local ages = {standard = tonumber(args[5]), batch = tonumber(args[6])}
  local keeps = {tonumber(args[7]), tonumber(args[8])}
  local now, lane = now_ms(), name(tag, 'lane')
  mend(tag)
  expect(tag, name(tag, 'c', worker), 'string')
  expect(tag, name(tag, 'ctl', worker), 'stream') -- the worker waits on it next
  local items, taken, bytes = repeated(tag, worker, token), {}, 0
  for at, known in ipairs(items) do taken[at] = known[1] end
  local since_aged = tonumber(redis.call('HGET', lane, 'since_aged')) or AGED_EVERY
  local heads = {}
  for _, band in ipairs(BANDS) do heads[band] = head_of(tag, band) end
  local discards = 0
  while #items < room and discards < MAX_DISCARDS and bytes < MAX_REPLY_BYTES do
    local head, went_ahead = choose(heads, ages, now, since_aged)
    if not head then break end
    since_aged = went_ahead and 0 or since_aged + 1
    local found = take(tag, head, worker, token, now, lease_ms, keeps)
    if found then
      items[#items + 1], taken[#taken + 1], bytes = found, found[1], bytes + weight(found)
    else
      discards = discards + 1
    end
    heads[head.band] = head_of(tag, head.band)
  end
  if #taken > 0 or discards > 0 then
    redis.call('HSET', lane, 'since_aged', math.min(since_aged, AGED_EVERY))
  end
  if #taken > 0 then
    redis.call('SET', name(tag, 'c', worker), token .. ' ' .. table.concat(taken, ' '), 'PX', lease_ms)
  end
  table.insert(items, 1, string.format('%.0f', now))
  return items
end, {'allow-oom'})

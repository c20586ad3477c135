-- Part 5: take jobs. The queue entry goes and the lease comes in one call, so no crash loses a job.

local MAX_DISCARDS = 200       -- queue entries that name no job, dropped per call before it answers
local MAX_REPLY_BYTES = 8388608 -- over it no further job is taken: the server builds a reply in memory
local AGED_TENANTS = 4         -- whose next jobs are looked at: whoever is passed over comes to the front by itself

local function created_of(tag, key)
  return number(redis.pcall('HGET', name(tag, 'j', key), 'created'))
end

-- What a band would serve next: {band, returned = true} or {band, tenant, at}; nil when nothing waits in it.
local function head_of(books, band, now)
  if get(books, 'returned:' .. band) > 0 then return {band = band, returned = true} end
  local first = next_tenants(books, band, 1, now)[1]
  if first then return {band = band, tenant = first[1], at = first[2]} end
end

-- The next job of a band that has waited over the age limit, in the band's own order; nil when there is none.
local function aged_of(books, band, age_ms, now)
  local tag, found = books.tag, nil
  local function consider(key, head)
    local created = created_of(tag, key)
    if now - created > age_ms then
      head.created = created
      found = head
    end
  end
  if get(books, 'returned:' .. band) > 0 then
    local key = shared(tag, 'LINDEX', name(tag, 'back', band), 0)
    if key then consider(key, {band = band, returned = true}) end
  end
  for place, tenant in ipairs(next_tenants(books, band, AGED_TENANTS, now)) do
    if found then break end
    local key = shared(tag, 'ZRANGE', name(tag, 'q', band .. ':' .. tenant[1]), 0, 0)[1]
    -- Out of its turn a tenant does not move the floor.
    if key then consider(key, {band = band, tenant = tenant[1], at = tenant[2], is_early = place > 1}) end
  end
  return found
end

-- The job to serve, of the class `least` and those above it: the best band's next, unless it is an aged one's turn.
-- Second value: whether it went ahead.
local function choose(books, ages, now, least)
  local first, lower
  for _, band in ipairs(BANDS) do
    if first then
      lower = lower or get(books, 'returned:' .. band) + get(books, 'jobs:' .. band) > 0
    else
      first = head_of(books, band, now)
    end
    if band == least then break end
  end
  if not lower or get(books, 'since_aged') < AGED_EVERY - 1 then return first, false end
  local aged
  for _, band in ipairs(BANDS) do
    local found = ages[band] and aged_of(books, band, ages[band], now)
    if found and (not aged or found.created < aged.created) then aged = found end
    if band == least then break end
  end
  if aged and aged.band ~= first.band then return aged, true end
  return first, false
end

-- An entry of the queue or the leases that names no record: a record and a terminal entry if it is a key, a dead
-- letter anyway.
local function bury_stray(books, band, key, now, keeps)
  local tag = books.tag
  if not is_job_key(key) then
    bury(tag, '', {}, 'malformed_entry: ' .. tostring(key):sub(1, 200):gsub('[^\32-\126]', '?'), 0)
    return
  end
  local record = {tenant = 'default', band = band, choices = 0, created = whole(now)}
  for field, value in pairs(record) do redis.call('HSET', name(tag, 'j', key), field, value) end
  end_job(books, key, record, 'error', now, keeps, 'unknown_job',
    'there is no record of this job: it was not posted with headway_submit, or somebody deleted it')
end

-- 48 bits, since a Lua number holds no more than 53 exactly; the same in every attempt.
local function seed_of(tag, key, record)
  return whole(tonumber(redis.sha1hex(key .. (record.created or '') .. tag):sub(1, 12), 16))
end

local function item(tag, key, record, body)
  local entries = {}
  if number(record.epoch) > 1 then
    entries = redis.pcall('XRANGE', name(tag, 'o', key), '-', '+')
    if entries.err then -- no stream, so nothing is left of what was published; it would refuse this owner's entries too
      redis.call('DEL', name(tag, 'o', key))
      entries = {}
    end
  end
  return {key, record.token, whole(number(record.epoch)), whole(number(record.attempts)), body, entries,
    seed_of(tag, key, record), whole(number(record.created)), whole(number(record.deadline)), record.cancel or ''}
end

-- The bytes of a reply's item that may be many: its body, and the entries published so far.
local function weight_in_bytes(reply_item)
  local bytes = #reply_item[5]
  for _, entry in ipairs(reply_item[6]) do
    for _, part in ipairs(entry[2]) do bytes = bytes + #part end
  end
  return bytes
end

-- A token stream that does not exist yet gets its lifetime before its first entry: emits must be cheap.
local function open_stream(o, until_ms)
  redis.pcall('XGROUP', 'CREATE', o, 'none', '0', 'MKSTREAM')
  redis.pcall('XGROUP', 'DESTROY', o, 'none')
  redis.call('PEXPIREAT', o, until_ms)
end

-- Gives one queued job to a worker, for `charged` tokens.
local function open(books, key, record, body, charged, claim)
  local tag, j = books.tag, name(books.tag, 'j', key)
  local now, deadline = whole(claim.now), number(record.deadline)
  record.epoch = whole(number(record.epoch) + 1)
  -- The call's own token is no fence: the network may deliver it a second time, when its first owner was long lost.
  record.state, record.token = 'running', claim.token .. '.' .. record.epoch
  if record.started then
    redis.call('HSET', j, 'state', 'running', 'worker', claim.worker, 'token', record.token, 'epoch', record.epoch,
      'claimed', now, 'charged', charged, 'back', '')
  else
    redis.call('HSET', j, 'state', 'running', 'worker', claim.worker, 'token', record.token, 'epoch', record.epoch,
      'claimed', now, 'charged', charged, 'started', now)
  end
  shared(tag, 'ZADD', name(tag, 'lease'), claim.now + claim.lease_ms, key)
  add(books, 'running', 1)
  if deadline > 0 then
    shared(tag, 'ZREM', name(tag, 'due'), key)
    if record.epoch == '1' then open_stream(name(tag, 'o', key), deadline + claim.keeps[2]) end
  end
  return item(tag, key, record, body)
end

-- Jobs of this very claim, made earlier by a call whose reply was lost.
local function repeated(tag, worker, token)
  local items = {}
  local last = shared(tag, 'GET', name(tag, 'c', worker))
  if not last then return items end
  local last_token, keys = last:match('^(%S+) (.*)$')
  if last_token ~= token then return items end
  for key in keys:gmatch('%S+') do
    local record = load_record(tag, key)
    local body = redis.pcall('GET', name(tag, 'p', key))
    if record and is_running(record) and record.token:sub(1, #token + 1) == token .. '.' and type(body) == 'string' then
      items[#items + 1] = item(tag, key, record, body)
    end
  end
  return items
end

-- Opens a job that left its queue, or ends it. Returns the reply's item and the tokens charged; nil if it does not run.
local function run(books, head, key, record, claim)
  local tag = books.tag
  if not record then
    bury_stray(books, head.band, key, claim.now, claim.keeps)
    return nil
  end
  if not is_queued(record) then return nil end -- a second entry of a job that runs or has ended
  if end_if_due(books, key, record, claim.now, claim.keeps) then return nil end
  local body = redis.pcall('GET', name(tag, 'p', key))
  if type(body) ~= 'string' then
    redis.call('DEL', name(tag, 'p', key))
    end_job(books, key, record, 'error', claim.now, claim.keeps, 'body_missing', 'the body of the job is gone')
    return nil
  end
  local expected = expected_of(books, tenant_of(record), number(record.cost), math.ceil(#body / 4))
  local charged = math.max(0, expected - number(record.paid))
  return open(books, key, record, body, charged, claim), charged
end

-- Takes the job at a head; returns the reply's item, or nil if it was no job to run.
local function take(books, head, claim)
  local tag, band, key = books.tag, head.band, nil
  if head.returned then
    key = shared(tag, 'LPOP', name(tag, 'back', band))
    put(books, 'returned:' .. band, key and get(books, 'returned:' .. band) - 1 or 0)
    if not key then note_loss(books) end
  else
    key = shared(tag, 'ZPOPMIN', name(tag, 'q', band .. ':' .. head.tenant))[1]
  end
  if not key then -- somebody emptied the queue
    if head.tenant then
      note_loss(books)
      stop_waiting(books, band, head.tenant, head.at, claim.now)
      recount(books, band)
    end
    return nil
  end
  local record = is_job_key(key) and load_record(tag, key) or nil
  local found, charged = run(books, head, key, record, claim)
  if head.returned then
    if found then charge(books, band, tenant_of(record), charged) end
  else
    if not head.is_early then put(books, 'floor:' .. band, math.max(get(books, 'floor:' .. band), head.at)) end
    leave(books, band, head.tenant, number(record and record.cost), head.at, charged or 0, claim.now)
  end
  return found
end

local CLAIM_TIMES = {
  LEASE, {'standard_age_ms', 0, MAX_MS}, {'batch_age_ms', 0, MAX_MS}, STREAM_KEPT, RECORD_KEPT,
}

-- FCALL headway_claim 1 {lane} <worker> <room> <token> <lease ms> <standard age ms> <batch age ms>
--       <stream retention ms> <record retention ms> [least class]
-- -> now, then for each job: key, token, epoch, attempts, body, entries, seed, created, deadline, cancel
register('headway_claim', function(keys, args)
  local tag, room, problem = keys[1], figures(args, 2, {{'room', 0, 1e6}})
  if problem then return problem end
  if args[1] == '' then return invalid('worker', 'must not be empty') end
  if not args[3] or not args[3]:match('^%S+$') then return invalid('token', 'must be a text without spaces') end
  local times
  times, problem = figures(args, 4, CLAIM_TIMES)
  if problem then return problem end
  local least = args[9] or 'batch'
  if least ~= 'interactive' and least ~= 'standard' and least ~= 'batch' then return invalid('least', 'must be interactive, standard or batch') end
  local ages = {standard = times[2], batch = times[3]}
  local claim = {worker = args[1], token = args[3], lease_ms = times[1], now = now_ms(), keeps = {times[4], times[5]}}
  local items, taken, bytes = repeated(tag, claim.worker, claim.token), {}, 0
  for at, known in ipairs(items) do taken[at] = known[1] end
  local books, discards = open_books(tag), 0
  while #items < room[1] and discards < MAX_DISCARDS and bytes < MAX_REPLY_BYTES do
    local head, went_ahead = choose(books, ages, claim.now, least)
    if not head then break end
    put(books, 'since_aged', went_ahead and 0 or math.min(get(books, 'since_aged') + 1, AGED_EVERY))
    local found = take(books, head, claim)
    if found then
      items[#items + 1], taken[#taken + 1], bytes = found, found[1], bytes + weight_in_bytes(found)
    else
      discards = discards + 1
    end
  end
  save(books)
  if #taken > 0 then
    redis.call('SET', name(tag, 'c', claim.worker), claim.token .. ' ' .. table.concat(taken, ' '), 'PX', claim.lease_ms)
  end
  table.insert(items, 1, whole(claim.now))
  return items
end, {'allow-oom'})

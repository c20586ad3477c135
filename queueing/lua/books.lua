-- Part 2: who waits in a lane, and whose turn it is. Invariants: see the end of queueing/keys.py's table.
--
-- Each band is a start-time fair queue over its tenants. A tenant's virtual time is its service by weight; the
-- smallest goes next, and its place before the charge is the band's floor. Who begins to wait starts at
-- the floor at least: idling earns nothing. An expectation is charged at the claim, and put right when it ends.

local AGED_EVERY = 4 -- see queueing/settings.py
local FORGET_MS = 3600000 -- a tenant that has not waited for so long starts at the floor, like a new one

-- The lane's hash, read at its first use; what changed is written once, by `save`.
local function open_books(tag)
  return {tag = tag, changed = {}, weights = {}, answers = {}}
end

local function recount(books, band)
  local tag, jobs, tokens = books.tag, 0, 0
  for _, tenant in ipairs(shared(tag, 'ZRANGE', name(tag, 'turn', band), 0, -1)) do
    jobs = jobs + shared(tag, 'ZCARD', name(tag, 'q', band .. ':' .. tenant))
    tokens = tokens + number(shared(tag, 'HGET', name(tag, 'tenant', tenant), 'tokens:' .. band))
  end
  books.fields['jobs:' .. band], books.fields['tokens:' .. band] = jobs, tokens
  books.fields['returned:' .. band] = shared(tag, 'LLEN', name(tag, 'back', band))
  for _, what in ipairs({'jobs:', 'tokens:', 'returned:'}) do books.changed[what .. band] = true end
end

local rebuild

local function read_books(books)
  local flat, fields = shared(books.tag, 'HGETALL', name(books.tag, 'lane')), {}
  for at = 1, #flat, 2 do
    local value = tonumber(flat[at + 1])
    if is_sane(value) then fields[flat[at]] = value end
  end
  books.fields = fields
  if not fields.since_aged then -- a new lane, or one whose books somebody deleted
    fields.since_aged, books.changed.since_aged = AGED_EVERY, true
    fields.lost, books.changed.lost = 1, true
    fields.running, books.changed.running = shared(books.tag, 'ZCARD', name(books.tag, 'lease')), true
    for _, band in ipairs(BANDS) do rebuild(books, band, now_ms()) end
  end
end

local function get(books, field)
  if not books.fields then read_books(books) end
  return books.fields[field] or 0
end

local function put(books, field, value)
  if not books.fields then read_books(books) end
  books.fields[field], books.changed[field] = value, true
end

local function add(books, field, by) put(books, field, math.max(0, get(books, field) + by)) end

-- Notes that an index of the lane lost jobs: whoever reaps next looks for them (restore.lua).
local function note_loss(books) put(books, 'lost', 1) end

local function save(books)
  local flat = {}
  for field in pairs(books.changed) do
    flat[#flat + 1] = field
    flat[#flat + 1] = books.fields[field]
  end
  if #flat > 0 then shared(books.tag, 'HSET', name(books.tag, 'lane'), unpack(flat)) end
end

-- In this class and those above it.
local function waiting_jobs(books, least)
  local total = 0
  for _, band in ipairs(BANDS) do
    total = total + get(books, 'jobs:' .. band) + get(books, 'returned:' .. band)
    if band == least then break end
  end
  return total
end

local function weight_of(books, tenant)
  local weight = books.weights[tenant]
  if not weight then
    weight = tonumber(shared(books.tag, 'HGET', name(books.tag, 'weights'), tenant) or 1)
    if not weight or not (weight > 0 and weight < 1e9) then weight = 1 end
    books.weights[tenant] = weight
  end
  return weight
end

-- The tokens to charge for a job at its claim: its prompt, and an answer as long as the tenant's usual ones, at most what
-- it may be. Charging what it may be would put off whoever allows itself much and uses little, while its jobs run.
local function expected_of(books, tenant, cost, prompt)
  local usual = books.answers[tenant]
  if usual == nil then
    usual = tonumber(shared(books.tag, 'HGET', name(books.tag, 'tenant', tenant), 'answer'))
    if not is_sane(usual) then usual = false end
    books.answers[tenant] = usual
  end
  return usual and math.min(cost, prompt + usual) or cost
end

-- Called before a job is added: workers sleep only while nothing waits, those full of batch jobs while nothing better does.
local function ring_if_empty(books, band)
  if waiting_jobs(books, band) == 0 then
    shared(books.tag, 'XADD', name(books.tag, 'wake'), 'MAXLEN', 8, '*', 'job', '')
  end
end

local function add_tokens(books, band, tenant, by)
  local key, field = name(books.tag, 'tenant', tenant), 'tokens:' .. band
  if type(redis.pcall('HINCRBY', key, field, by)) ~= 'number' then
    shared(books.tag, 'HSET', key, field, math.max(0, by))
  end
  add(books, field, by)
end

local function start_waiting(books, band, tenant, now)
  local tag = books.tag
  local own = tonumber(shared(tag, 'HGET', name(tag, 'tenant', tenant), 'v:' .. band))
  local floor = get(books, 'floor:' .. band)
  local at = is_sane(own) and math.max(own, floor) or floor
  shared(tag, 'ZADD', name(tag, 'turn', band), at, tenant)
  shared(tag, 'ZADD', name(tag, 'seen'), now, tenant)
end

-- `at`: the virtual time to come back with.
local function stop_waiting(books, band, tenant, at, now)
  local tag, key = books.tag, name(books.tag, 'tenant', tenant)
  local left = number(shared(tag, 'HGET', key, 'tokens:' .. band))
  if left > 0 then add(books, 'tokens:' .. band, -left) end -- of jobs that vanished
  shared(tag, 'HSET', key, 'v:' .. band, at, 'tokens:' .. band, 0)
  shared(tag, 'ZREM', name(tag, 'turn', band), tenant)
  shared(tag, 'ZADD', name(tag, 'seen'), now, tenant)
end

-- Adds a job to its tenant's backlog; `place`: its deadline, or until when it is patient.
local function enqueue(books, key, band, tenant, cost, place, now)
  local tag = books.tag
  ring_if_empty(books, band)
  shared(tag, 'ZADD', name(tag, 'q', band .. ':' .. tenant), place, key)
  add(books, 'jobs:' .. band, 1)
  add_tokens(books, band, tenant, cost)
  if not shared(tag, 'ZSCORE', name(tag, 'turn', band), tenant) then start_waiting(books, band, tenant, now) end
end

-- One waiting job less of a tenant, whose turn was `at` and who pays `charge` tokens for it.
local function leave(books, band, tenant, cost, at, charge, now)
  local tag = books.tag
  local after = at + charge / weight_of(books, tenant)
  add(books, 'jobs:' .. band, -1)
  add_tokens(books, band, tenant, -cost)
  local left = shared(tag, 'ZCARD', name(tag, 'q', band .. ':' .. tenant))
  if left > 0 and get(books, 'jobs:' .. band) == 0 then recount(books, band) end -- somebody else added some
  if left == 0 then
    stop_waiting(books, band, tenant, after, now)
    if get(books, 'jobs:' .. band) == 0 then put(books, 'tokens:' .. band, 0) end
  elseif charge ~= 0 then
    shared(tag, 'ZADD', name(tag, 'turn', band), after, tenant)
  end
end

-- Takes a waiting job out of its queue.
local function dequeue(books, key, record, now)
  local tag, band, tenant = books.tag, band_of(record), tenant_of(record)
  if record.back == '1' then
    local removed = shared(tag, 'LREM', name(tag, 'back', band), 1, key)
    add(books, 'returned:' .. band, -removed)
  elseif shared(tag, 'ZREM', name(tag, 'q', band .. ':' .. tenant), key) == 1 then
    local at = tonumber(shared(tag, 'ZSCORE', name(tag, 'turn', band), tenant))
    leave(books, band, tenant, number(record.cost), at or get(books, 'floor:' .. band), 0, now)
  end
  if number(record.deadline) > 0 then shared(tag, 'ZREM', name(tag, 'due'), key) end
end

-- Charges a tenant for `tokens` of service beyond what it has paid; less than 0: gives back.
local function charge(books, band, tenant, tokens)
  if tokens == 0 then return end
  local tag, turn = books.tag, name(books.tag, 'turn', band)
  local by = tokens / weight_of(books, tenant)
  local at = tonumber(shared(tag, 'ZSCORE', turn, tenant))
  if at then
    shared(tag, 'ZADD', turn, at + by, tenant)
    return
  end
  local key, field = name(tag, 'tenant', tenant), 'v:' .. band
  at = tonumber(shared(tag, 'HGET', key, field))
  if at then shared(tag, 'HSET', key, field, at + by) end -- else: forgotten, and with it what it owed
end

-- The index of turns from what is left: somebody deleted it.
function rebuild(books, band, now)
  local tag = books.tag
  for _, tenant in ipairs(shared(tag, 'ZRANGE', name(tag, 'seen'), 0, -1)) do
    if shared(tag, 'ZCARD', name(tag, 'q', band .. ':' .. tenant)) > 0
      and not shared(tag, 'ZSCORE', name(tag, 'turn', band), tenant) then
      start_waiting(books, band, tenant, now)
    end
  end
  recount(books, band)
end

-- The tenants of a band whose turn is next: at most `count` of {tenant, virtual time}.
local function next_tenants(books, band, count, now)
  if get(books, 'jobs:' .. band) <= 0 then return {} end
  local tag, turn, found = books.tag, name(books.tag, 'turn', band), {}
  local flat = shared(tag, 'ZRANGE', turn, 0, count - 1, 'WITHSCORES')
  if #flat == 0 then
    note_loss(books)
    rebuild(books, band, now)
    flat = shared(tag, 'ZRANGE', turn, 0, count - 1, 'WITHSCORES')
  end
  for at = 1, #flat, 2 do
    local time = tonumber(flat[at + 1])
    found[#found + 1] = {flat[at], is_sane(time) and time or get(books, 'floor:' .. band)}
  end
  return found
end

-- Forgets tenants that have not waited for long: at most `limit` of them.
local function forget_tenants(tag, now, limit)
  local tenants = name(tag, 'seen')
  for _, tenant in ipairs(shared(tag, 'ZRANGEBYSCORE', tenants, '-inf', now - FORGET_MS, 'LIMIT', 0, limit)) do
    local waits = false
    for _, band in ipairs(BANDS) do
      waits = waits or shared(tag, 'ZSCORE', name(tag, 'turn', band), tenant)
    end
    if waits then
      shared(tag, 'ZADD', tenants, now, tenant)
    else
      redis.call('DEL', name(tag, 'tenant', tenant))
      shared(tag, 'ZREM', tenants, tenant)
    end
  end
end

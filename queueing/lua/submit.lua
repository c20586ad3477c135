-- Part 3: accept a job. Only cheap checks here; workers dead-letter what they cannot run.

local MAX_COMPARED_PARTS = 50000 -- a valid job has at most some 15,000; the walk must not hold up the server

-- A digest of an array of numbers, or nil for any other table. Token ids come 170,000 at a time: as text they
-- cost the server 70 ms, so two small sums stand for them, which no accident makes equal.
local function digest_of_numbers(value)
  if type(value[1]) ~= 'number' then return nil end
  local one, two = 0, 0
  for _, each in ipairs(value) do
    if type(each) ~= 'number' then return nil end
    one, two = (one * 31 + each) % 4294967291, (two * 131 + each) % 4294967279
  end
  return string.format('[%d:%.17g:%.17g]', #value, one, two)
end

-- A text that is equal for bodies that ask the same, whatever the order of their fields.
local function canonical(value, budget)
  budget.left = budget.left - 1
  if budget.left < 0 then error('too many parts') end
  if type(value) == 'number' then return string.format('%.17g', value) end
  if type(value) ~= 'table' then return type(value) .. tostring(value) end
  local numbers = digest_of_numbers(value)
  if numbers then return numbers end
  local names, parts = {}, {}
  for field in pairs(value) do names[#names + 1] = field end
  table.sort(names, function(a, b)
    if type(a) == type(b) then return a < b end
    return type(a) == 'number'
  end)
  for at, field in ipairs(names) do
    local text = canonical(value[field], budget)
    parts[at] = #tostring(field) .. ':' .. field .. '=' .. #text .. ':' .. text
  end
  return '{' .. table.concat(parts, ',') .. '}'
end

-- The fingerprint of a body, or nil when it has too many parts to be compared. `asked`: the fields that its
-- producer had posted otherwise, before its tenant's defaults were filled in: those may change until a repeat.
local function fingerprint(job, asked)
  local compared = {}
  for field, value in pairs(job) do compared[field] = value end
  for field, value in pairs(asked) do
    compared[field] = value ~= cjson.null and value or nil
  end
  compared.traceparent = nil -- a retry of the same request belongs to a new trace
  local ok, text = pcall(canonical, compared, {left = MAX_COMPARED_PARTS})
  return ok and redis.sha1hex(text) or nil
end

-- The body as a table, or nil and an error reply.
local function parse(tag, body)
  if #body > MAX_BODY_BYTES then
    return nil, invalid('body', 'the job is ' .. #body .. ' bytes, the limit ' .. MAX_BODY_BYTES)
  end
  local ok, job = pcall(cjson.decode, body)
  if not ok then return nil, invalid('body', 'not valid JSON') end
  if type(job) ~= 'table' or not body:match('^%s*{') then
    return nil, invalid('body', 'must be a JSON object')
  end
  for field, value in pairs(job) do
    if value == cjson.null then job[field] = nil end
  end
  local model = tag:match('^{(.+):%d+}$')
  if not model then return nil, invalid('lane', 'KEYS[1] must look like {model:0}') end
  if type(job.model) ~= 'string' or job.model:gsub('/', '--') ~= model then
    return nil, invalid('model', 'must be ' .. model:gsub('%-%-', '/') .. ', the model of this lane')
  end
  return job
end

-- An error reply if a routing field is wrong, else nil.
local function wrong_field(job)
  local tenant = job.tenant or 'default'
  if type(tenant) ~= 'string' or #tenant > 64 or not tenant:match('^[%w_.@%-]+$') then
    return invalid('tenant', 'use 1 to 64 characters out of A-Z a-z 0-9 _ . @ -')
  end
  local band = job.priority or 'standard'
  if band ~= 'interactive' and band ~= 'standard' and band ~= 'batch' then
    return invalid('priority', 'must be interactive, standard or batch')
  end
  local deadline = job.deadline_seconds
  if deadline ~= nil and not (type(deadline) == 'number' and deadline > 0 and deadline <= 604800) then
    return invalid('deadline_seconds', 'must be a number above 0 and at most 604800')
  end
  local same = job.idempotency_key
  if same ~= nil and not (type(same) == 'string' and #same > 0 and #same <= 255) then
    return invalid('idempotency_key', 'must be a text of 1 to 255 bytes')
  end
end

local function sampling_of(job)
  return type(job.sampling) == 'table' and job.sampling or {}
end

local function choices_of(job)
  local n = sampling_of(job).n
  if type(n) == 'number' and n >= 1 and n <= 16 and n == math.floor(n) then return n end
  return 1
end

-- Tokens that each answer of the job may have.
local function longest_answer(job)
  local generated = sampling_of(job).max_tokens
  if type(generated) ~= 'number' or generated ~= generated or generated < 0 then generated = 256 end
  return math.ceil(math.min(generated, 1e6))
end

-- Rough tokens that the job may take, for who shares out the work: bytes / 4, and what it may generate.
local function cost_of(job, body)
  return math.ceil(#body / 4) + longest_answer(job) * choices_of(job)
end

local function metadata_of(job)
  if type(job.metadata) ~= 'table' or next(job.metadata) == nil then return nil end
  local ok, text = pcall(cjson.encode, job.metadata) -- not NaN, which the parser lets pass
  return ok and #text <= 65536 and text or nil
end

-- What a submit may be told beside key and body, from args[at] on; or nil and an error reply.
local function limits_of(args, at)
  local found, problem = figures(args, at, {
    {'max_jobs', 0, 1e15, 100000}, {'idempotency_ms', 1, MAX_MS, 86400000}, {'record_retention_ms', 1, MAX_MS, 3600000},
    {'max_tokens_waiting', 0, 1e15, 100000000}, {'max_wait_ms', 0, 1e15, 3600000}, {'patience_ms', 0, MAX_MS, 600000},
  })
  if not found then return nil, problem end
  return {
    jobs = found[1], idempotency_ms = found[2], record_ms = found[3], tokens = found[4], wait_ms = found[5],
    patience_ms = found[6], reserved = args[at + 6] or '',
  }
end

-- The fields of a body as they were asked for, from their JSON; or nil and an error reply.
local function asked_of(text)
  if text == nil or text == '' then return {} end
  local ok, asked = pcall(cjson.decode, text)
  if ok and type(asked) == 'table' and text:match('^%s*{') then return asked end
  return nil, invalid('asked', 'must be a JSON object of fields')
end

-- The part of a bound that one tenant alone may fill, as a multiple of what is free: the last tenth is kept for
-- others, and when many tenants wait in full, each has about the same room (dynamic thresholds, Choudhury and Hahne).
local SHARE_OF_FREE = 9

local function is_over_share(total, bound, own)
  return total * (SHARE_OF_FREE + 1) >= bound * SHARE_OF_FREE and own() >= SHARE_OF_FREE * (bound - total)
end

local function sum_over_bands(each)
  local total = 0
  for _, band in ipairs(BANDS) do total = total + each(band) end
  return total
end

-- The part of a deadline that a job's predicted end may take: predictions are a fifth off, and one that is accepted and
-- then cut off has cost as much as one that was in time.
local DEADLINE_SHARE = 0.8
local USUAL_ROOM = 1.5 -- of usual answers: as long a new one is thought to get, if it may
local PRESSED_MS = 60000 -- a rate that was measured under pressure says for so long what the workers can do

-- Tokens that an answer of the job will have, as far as its tenant's others tell, or where it has none yet the lane's:
-- `answered` of each estimated token. Else newcomers who allow themselves much would be refused for good.
local function expected_answer(books, job, answered)
  local usual = tonumber(shared(books.tag, 'HGET', name(books.tag, 'tenant', job.tenant or 'default'), 'answer'))
  local longest = longest_answer(job)
  return math.min(longest, USUAL_ROOM * (is_sane(usual) and usual or longest * answered))
end

-- Estimated tokens that go before a job with this place among its tenant's. Better bands go first, and of its own band
-- as much as fair shares let pass before the tenant's own jobs with an earlier place.
local function tokens_ahead(books, band, tenant, place)
  local ahead = 0
  for _, each in ipairs(BANDS) do
    if each == band then break end
    ahead = ahead + get(books, 'tokens:' .. each)
  end
  local tag, weight = books.tag, weight_of(books, tenant)
  local q = name(tag, 'q', band .. ':' .. tenant)
  local own = number(shared(tag, 'HGET', name(tag, 'tenant', tenant), 'tokens:' .. band))
  local earlier = shared(tag, 'ZCOUNT', q, '-inf', place)
  if earlier > 0 then own = own * earlier / shared(tag, 'ZCARD', q) else own = 0 end
  local others = shared(tag, 'ZCARD', name(tag, 'turn', band))
  return ahead + math.min(get(books, 'tokens:' .. band), own * (weight + others) / weight)
end

-- The predicted wait, if it is beyond the limit, or the predicted end, if it is beyond the deadline: the bound and by how
-- many milliseconds, else nil. A job has its share of the rate beside those that run. A deadline is judged only where
-- jobs have been waiting lately, else the rate may be from when there was little to do; and only behind others: who is
-- first gets a place at once, if need be before what runs, and its worker knows better how long it will take.
local function too_late(books, job, limits, place)
  local rate = number(shared(books.tag, 'GET', name(books.tag, 'rate')))
  if rate <= 0 then return nil end
  local estimated = get(books, 'estimated')
  local answered = estimated > 0 and get(books, 'answered') / estimated or 1
  local ahead = tokens_ahead(books, job.priority or 'standard', job.tenant or 'default', place)
  local wait = ahead * answered / rate * 1000
  if wait > limits.wait_ms then return 'wait', wait - limits.wait_ms end
  if ahead <= 0 or not job.deadline_seconds or job.demotable == true then return nil end
  if now_ms() - get(books, 'pressed') > PRESSED_MS then return nil end
  local took = expected_answer(books, job, answered) * get(books, 'running') / rate * 1000
  local late = wait + took - job.deadline_seconds * 1000 * DEADLINE_SHARE
  if late > 0 then return 'deadline', late end
end

-- Where a job stands among its tenant's: its deadline, or until when it is patient.
local function place_of(job, limits, exact)
  return exact + (job.deadline_seconds and job.deadline_seconds * 1000 or limits.patience_ms)
end

-- The reply for a lane in which enough waits, or nil: jobs waiting, the bound, and when to try again.
local function refusal(books, job, cost, limits, place)
  local tag, tenant = books.tag, job.tenant or 'default'
  local jobs = waiting_jobs(books)
  local function full(bound, after_ms)
    return {'full', whole(jobs), bound, whole(math.min(math.max(after_ms or 2000, 1000), 60000))}
  end
  local function own_jobs()
    return sum_over_bands(function(each) return shared(tag, 'ZCARD', name(tag, 'q', each .. ':' .. tenant)) end)
  end
  if jobs >= limits.jobs or is_over_share(jobs, limits.jobs, own_jobs) then return full('jobs') end
  local tokens = sum_over_bands(function(each) return get(books, 'tokens:' .. each) end)
  local function own_tokens()
    local key = name(tag, 'tenant', tenant)
    return sum_over_bands(function(each) return number(shared(tag, 'HGET', key, 'tokens:' .. each)) end)
  end
  if tokens > 0 and (tokens + cost > limits.tokens or is_over_share(tokens, limits.tokens, own_tokens)) then
    return full('tokens')
  end
  if tokens > 0 then
    local bound, after_ms = too_late(books, job, limits, place)
    if bound then return full(bound, after_ms) end
  end
end

-- Writes a job that is accepted, and puts it into its tenant's backlog.
local function accept(books, key, body, job, cost, limits, exact, place, parent)
  local tag, now = books.tag, math.floor(exact)
  local band, tenant = job.priority or 'standard', job.tenant or 'default'
  local j, p = name(tag, 'j', key), name(tag, 'p', key)
  -- Only what is not usual, so that a waiting job costs little memory.
  local fields = {'state', 'queued', 'tenant', tenant, 'band', band, 'created', now, 'cost', cost}
  local function note(field, value)
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
  if choices_of(job) > 1 then note('choices', choices_of(job)) end
  if job.on_disconnect == 'detach' then note('on_disconnect', 'detach') end
  if metadata_of(job) then note('metadata', metadata_of(job)) end
  if limits.reserved ~= '' then note('reserved', limits.reserved) end
  if parent then note('parent', parent) end
  redis.call('SET', p, body)
  -- What may be demoted is never ended for its deadline: that is the worker's to weigh.
  if job.deadline_seconds and job.demotable ~= true then
    local deadline = math.floor(place)
    note('deadline', deadline)
    shared(tag, 'ZADD', name(tag, 'due'), deadline, key)
    redis.call('HSET', j, unpack(fields))
    redis.call('PEXPIREAT', j, deadline + limits.record_ms)
    redis.call('PEXPIREAT', p, deadline + limits.record_ms)
  else
    redis.call('HSET', j, unpack(fields))
  end
  enqueue(books, key, band, tenant, cost, place, now)
  save(books)
  return {'created', key}
end

-- FCALL headway_submit 1 {lane} <key> <body> [max jobs] [idempotency ms] [record retention ms] [max tokens]
--       [max wait ms] [patience ms] [reserved] [fields as asked, JSON]
-- -> created <key> | exists <key> | conflict <key> | full <jobs waiting> <jobs, tokens, wait or deadline>
--       <retry after ms>
register('headway_submit', function(keys, args)
  local tag, key, body = keys[1], args[1], args[2]
  if not is_job_key(key) then
    return invalid('key', 'use 1 to 64 characters out of A-Z a-z 0-9 _ -')
  end
  if not body then return invalid('body', 'missing') end
  local job, problem = parse(tag, body)
  problem = problem or wrong_field(job)
  local limits, asked
  if not problem then limits, problem = limits_of(args, 3) end
  if not problem then asked, problem = asked_of(args[10]) end
  if problem then return problem end
  if is_taken(tag, key) then return {'exists', key} end
  local same, print
  if job.idempotency_key then
    print = fingerprint(job, asked)
    if not print then return invalid('idempotency_key', 'the body has too many parts to be compared') end
    same = name(tag, 'idem', (job.tenant or 'default') .. ':' .. job.idempotency_key)
    local earlier_key, earlier_print = (shared(tag, 'GET', same) or ''):match('^([%w_-]+) (%x+)$')
    if earlier_key then return {print == earlier_print and 'exists' or 'conflict', earlier_key} end
  end
  local books, exact, cost = open_books(tag), exact_ms(), cost_of(job, body)
  local place = place_of(job, limits, exact)
  local full = refusal(books, job, cost, limits, place)
  if full then return full end
  if same then
    redis.call('SET', same, key .. ' ' .. print, 'PX', limits.idempotency_ms)
  end
  return accept(books, key, body, job, cost, limits, exact, place)
end)

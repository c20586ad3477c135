-- Part 2 of 6: accept a job. Only cheap checks here; workers dead-letter what they cannot run.

local function invalid(param, message)
  return redis.error_reply('HEADWAYINVALID ' .. param .. ': ' .. message)
end

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

-- The fingerprint of a body, or nil when it has too many parts to be compared.
local function fingerprint(job)
  job.traceparent = nil -- a retry of the same request belongs to a new trace
  local ok, text = pcall(canonical, job, {left = MAX_COMPARED_PARTS})
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

-- Rough tokens that the job may take, for who shares out the work: bytes / 4, and what it may generate.
local function cost_of(job, body)
  local generated = sampling_of(job).max_tokens
  if type(generated) ~= 'number' or generated ~= generated or generated < 0 then generated = 256 end
  return string.format('%.0f', math.ceil(#body / 4) + math.min(generated, 1e6) * choices_of(job))
end

local function metadata_of(job)
  if type(job.metadata) ~= 'table' then return '{}' end
  local text = cjson.encode(job.metadata)
  return #text <= 65536 and text or '{}'
end

-- Puts the entry into the band's stream; a stream whose ids a stray XADD used up is passed by.
local function enqueue(tag, key, band, tenant, cost)
  local entry = redis.pcall('XADD', name(tag, 'q', band), '*', 'job', key, 'tenant', tenant, 'cost', cost)
  if type(entry) == 'string' then return entry end
  redis.call('RPUSH', name(tag, 'back', band), key)
  redis.pcall('XADD', name(tag, 'wake'), 'MAXLEN', 8, '*', 'job', key)
  return ''
end

local function accept(tag, key, body, job, record_keep_ms)
  local now = now_ms()
  local band, tenant = job.priority or 'standard', job.tenant or 'default'
  local j, p = name(tag, 'j', key), name(tag, 'p', key)
  redis.call('SET', p, body)
  redis.call('HSET', j,
    'state', 'queued', 'model', job.model, 'tenant', tenant, 'band', band, 'created', now, 'n', 0, 'part', 0,
    'epoch', 0, 'attempts', 0, 'choices', choices_of(job), 'metadata', metadata_of(job),
    'on_disconnect', job.on_disconnect == 'detach' and 'detach' or 'cancel',
    -- 48 bits, since a Lua number holds no more than 53 exactly
    'seed', string.format('%.0f', tonumber(redis.sha1hex(key .. now .. tag):sub(1, 12), 16)),
    'entry', enqueue(tag, key, band, tenant, cost_of(job, body)))
  -- What may be demoted is never ended for its deadline: that is the worker's to weigh.
  if job.deadline_seconds and job.demotable ~= true then
    local deadline = now + math.floor(job.deadline_seconds * 1000)
    redis.call('HSET', j, 'deadline', deadline)
    redis.call('ZADD', name(tag, 'due'), deadline, key)
    redis.call('PEXPIREAT', j, deadline + record_keep_ms)
    redis.call('PEXPIREAT', p, deadline + record_keep_ms)
  end
  return {'created', key}
end

-- FCALL headway_submit 1 {lane} <key> <body> [max queued] [idempotency ms] [record retention ms]
-- -> created <key> | exists <key> | conflict <key> | full <jobs waiting>
register('headway_submit', function(keys, args)
  local tag, key, body = keys[1], args[1], args[2]
  if not is_job_key(key) then
    return invalid('key', 'use 1 to 64 characters out of A-Z a-z 0-9 _ -')
  end
  if not body then return invalid('body', 'missing') end
  local job, problem = parse(tag, body)
  problem = problem or wrong_field(job)
  if problem then return problem end
  mend(tag)
  if redis.call('EXISTS', name(tag, 'j', key)) == 1 then return {'exists', key} end
  local same, print
  if job.idempotency_key then
    print = fingerprint(job)
    if not print then return invalid('idempotency_key', 'the body has too many parts to be compared') end
    same = name(tag, 'idem', (job.tenant or 'default') .. ':' .. job.idempotency_key)
    expect(tag, same, 'string')
    local earlier = redis.call('GET', same)
    if earlier then
      local earlier_key, earlier_print = earlier:match('^(%S+) (%S+)$')
      return {print == earlier_print and 'exists' or 'conflict', earlier_key}
    end
  end
  local queued = queued_jobs(tag)
  if queued >= (tonumber(args[3]) or 10000) then return {'full', tostring(queued)} end
  if same then
    redis.call('SET', same, key .. ' ' .. print, 'PX', tonumber(args[4]) or 86400000)
  end
  return accept(tag, key, body, job, tonumber(args[5]) or 3600000)
end)

-- Part 4: how a job ends, by its worker's word or without one. Always one terminal entry.

local RECENT_KEPT = 1000
local SETTLEMENTS_KEPT = 100000   -- far more than any outage of those who take them in should leave
local DEAD_BODY_KEPT_MS = 604800000 -- a week: long enough to find out why, and to redrive
local DAY_MS, USED_KEPT_MS = 86400000, 8035200000 -- days of usage: a quarter
local USED_FIELDS = 30000         -- of a day: three for each of 10,000 tenants; others are counted together
local ANSWERED_DECAY = 0.99       -- of the tokens answered per token estimated: about the last hundred jobs
local ANSWER_GAIN = 0.05          -- of a tenant's usual answer: about its last twenty jobs

-- Whether a token stream's entry has the form of ours. Its tokens and part, else nil.
local function position(entry)
  local fields = entry[2]
  if #fields < 4 or #fields > 10 or fields[1] ~= 't' or fields[3] ~= 'k' then return nil end
  local tokens, part = entry[1]:match('^(%d+)%-(%d+)$')
  if not tokens or #tokens > 15 or #part > 15 then return nil end
  return tonumber(tokens), tonumber(part)
end

-- Tokens and part of the last entry; 0, 0 of an empty stream. The stream itself is the count.
local function last_position(o)
  for _, count in ipairs({16, 1e9}) do -- further back only behind a crowd of strangers
    local entries = redis.pcall('XREVRANGE', o, '+', '-', 'COUNT', whole(count))
    if entries.err then return 0, 0 end
    for _, entry in ipairs(entries) do
      local tokens, part = position(entry)
      if tokens then return tokens, part end
    end
    if #entries < count then break end
  end
  return 0, 0
end

-- Rewrites a token stream without what others put there, which may be in the way: the server wants ids that grow.
-- Ours keep theirs, so cursors stay good. Says whether it is a stream at all.
local function drop_strangers(o)
  local entries = redis.pcall('XRANGE', o, '-', '+')
  if entries.err then return false end
  local left_ms = redis.call('PTTL', o)
  redis.call('DEL', o)
  for _, entry in ipairs(entries) do
    if position(entry) then redis.call('XADD', o, entry[1], unpack(entry[2])) end
  end
  if left_ms > 0 then redis.call('PEXPIRE', o, left_ms) end
  return true
end

-- Appends the terminal entry; never fails, since a job without one would hang its readers. Returns its tokens, which
-- are more than the worker said if its own count was behind.
local function append_terminal(o, tokens, part, terminal)
  local function add_at(at_tokens, at_part)
    local id = whole(at_tokens) .. '-' .. whole(at_part)
    return type(redis.pcall('XADD', o, id, 't', '', 'k', '', 'i', '-1', 'e', terminal)) == 'string'
  end
  if add_at(tokens, part) then return tokens end
  if not drop_strangers(o) then redis.call('DEL', o) end
  local last_tokens, last_part = last_position(o)
  if last_tokens >= tokens then tokens, part = last_tokens, math.max(part, last_part + 1) end
  add_at(tokens, part)
  return tokens
end

-- What was published so far, as JSON: the choices of the answer, and those of the terminal entry. Tokens and part too.
local function published(o, choices, reason)
  local kept, tokens, part = {}, 0, 0
  for i = 0, choices - 1 do kept[i] = {texts = {}, ids = {}, logprobs = {}, finish = reason} end
  local entries = redis.pcall('XRANGE', o, '-', '+')
  if entries.err then entries = {} end
  for _, entry in ipairs(entries) do
    local at_tokens, at_part = position(entry)
    local fields = table_of(entry[2])
    local choice = at_tokens and kept[tonumber(fields.i or '0') or -1]
    if at_tokens then tokens, part = at_tokens, at_part end
    if choice then
      choice.texts[#choice.texts + 1] = fields.t
      if fields.k and fields.k ~= '' then choice.ids[#choice.ids + 1] = fields.k end
      if fields.l then choice.logprobs[#choice.logprobs + 1] = fields.l:match('^%[(.+)%]$') end
      if fields.e and fields.e ~= '' then choice.finish = fields.e end
    end
  end
  local answers, ends = {}, {}
  for i = 0, choices - 1 do
    local choice = kept[i]
    local finish = cjson.encode(choice.finish)
    answers[i + 1] = '{"text":' .. cjson.encode(table.concat(choice.texts)) .. ',"token_ids":['
      .. table.concat(choice.ids, ',') .. '],"finish_reason":' .. finish .. ',"logprobs":['
      .. table.concat(choice.logprobs, ',') .. ']}'
    ends[i + 1] = '{"finish_reason":' .. finish .. ',"tail":""}'
  end
  return '[' .. table.concat(answers, ',') .. ']', '[' .. table.concat(ends, ',') .. ']', tokens, part
end

local function bury(tag, key, record, reason, tokens)
  shared(tag, 'XADD', name(tag, 'dlq'), 'MAXLEN', DEAD_LETTERS_KEPT, '*', 'job', key, 'tenant',
    record.tenant or '', 'reason', reason, 'attempts', record.attempts or '0', 'tokens', whole(tokens))
end

-- Puts the estimate that was charged at the claim right, by what the job's claim was really worth in tokens.
local function settle(books, record, served)
  charge(books, band_of(record), tenant_of(record), served - number(record.charged))
end

-- What a claim was worth when its worker does not say: the tokens of prompt and answer that nobody paid for yet.
local function service_so_far(tag, key, record, tokens)
  local prompt = redis.pcall('STRLEN', name(tag, 'p', key))
  return math.max(0, math.ceil(number(prompt) / 4) + tokens - number(record.paid))
end

-- How long whole answers really get: of the lane, to predict waits, and of the tenant, to charge for its next jobs. What
-- was cut off says nothing: under overload short pieces would make waits look short, and ever more would be accepted.
local function learn(tag, record, tokens)
  local lane, tenant = name(tag, 'lane'), name(tag, 'tenant', tenant_of(record))
  local so_far = shared(tag, 'HMGET', lane, 'answered', 'estimated')
  shared(tag, 'HSET', lane, 'answered', number(so_far[1]) * ANSWERED_DECAY + tokens,
    'estimated', number(so_far[2]) * ANSWERED_DECAY + number(record.cost))
  local usual = tonumber(shared(tag, 'HGET', tenant, 'answer'))
  shared(tag, 'HSET', tenant, 'answer', is_sane(usual) and usual + ANSWER_GAIN * (tokens - usual) or tokens)
end

-- Adds to a field of a day's usage. Whatever somebody wrote there instead must not keep a job from its end.
local function count(tag, key, field, by)
  local reply = redis.pcall('HINCRBY', key, field, by)
  if type(reply) ~= 'table' then return reply end
  if reply.err:find('WRONGTYPE', 1, true) then replace(tag, key) else redis.pcall('HDEL', key, field) end
  reply = redis.pcall('HINCRBY', key, field, by)
  return type(reply) ~= 'table' and reply or 0
end

-- What the job's tenant used today: in the call that ends the job, so each is counted exactly once.
local function count_usage(tag, tenant, prompt, completion, now)
  local used = name(tag, 'used', whole(math.floor(now / DAY_MS)))
  if count(tag, used, 'jobs:' .. tenant, 1) == 1 then
    redis.pcall('PEXPIRE', used, USED_KEPT_MS)
    if number(redis.pcall('HLEN', used)) > USED_FIELDS then
      redis.pcall('HDEL', used, 'jobs:' .. tenant)
      tenant = '*'
      count(tag, used, 'jobs:*', 1)
    end
  end
  if number(prompt) > 0 then count(tag, used, 'prompt:' .. tenant, whole(number(prompt))) end
  if completion > 0 then count(tag, used, 'completion:' .. tenant, whole(completion)) end
end

-- What the end of a job leaves for others: the newest ends, the quotas' settlement, the dead letter.
local function tell(tag, key, record, e, tokens, now)
  local tenant, n = tenant_of(record), whole(tokens)
  shared(tag, 'XADD', name(tag, 'recent'), 'MAXLEN', '~', RECENT_KEPT, '*', 'job', key, 'tenant', tenant,
    'band', band_of(record), 'reason', e.reason, 'tokens', n, 'created', record.created or '0', 'ended', whole(now))
  count_usage(tag, tenant, e.prompt, tokens, now)
  if record.reserved and record.reserved ~= '' then
    shared(tag, 'XADD', name(tag, 'settle'), 'MAXLEN', '~', SETTLEMENTS_KEPT, '*', 'job', key, 'tenant', tenant,
      'reserved', record.reserved, 'prompt', e.prompt or '0', 'completion', n, 'reason', e.reason)
  end
  if e.dead ~= '' then bury(tag, key, record, e.dead, tokens) end
end

-- Closes the books of a job. `e`: reason, terminal, result, error (JSON or ''), tokens, part, dead (reason or ''),
-- prompt (tokens), served (tokens). The caller saves the books.
local function close(books, key, record, e, now, keeps)
  local tag, stream_keep_ms, record_keep_ms = books.tag, keeps[1], keeps[2]
  local j, o = name(tag, 'j', key), name(tag, 'o', key)
  local tokens = append_terminal(o, e.tokens, e.part, e.terminal)
  redis.call('SET', name(tag, 'r', key), e.result, 'PX', record_keep_ms)
  redis.call('HSET', j, 'state', 'finished', 'reason', e.reason, 'error', e.error, 'finished', whole(now),
    'n', whole(tokens), 'token', '', 'done', record.token or '')
  redis.call('PEXPIRE', j, record_keep_ms)
  redis.call('PEXPIRE', name(tag, 'p', key), e.dead == '' and record_keep_ms or math.max(record_keep_ms, DEAD_BODY_KEPT_MS))
  redis.call('PEXPIRE', o, stream_keep_ms)
  if is_running(record) then
    shared(tag, 'ZREM', name(tag, 'lease'), key)
    add(books, 'running', -1)
    settle(books, record, e.served or service_so_far(tag, key, record, tokens))
    if e.reason == 'stop' or e.reason == 'length' then learn(tag, record, tokens) end
  end
  if number(record.deadline) > 0 then shared(tag, 'ZREM', name(tag, 'due'), key) end
  tell(tag, key, record, e, tokens, now)
end

-- Ends a job outside a worker: what was published so far becomes its answer. `code` and `message`: its error.
local function end_job(books, key, record, reason, now, keeps, code, message)
  local tag = books.tag
  local answers, ends, tokens, part = published(name(tag, 'o', key), tonumber(record.choices) or 1, reason)
  local problem = ''
  if code then
    problem = '{"code":' .. cjson.encode(code) .. ',"message":' .. cjson.encode(message) .. ',"param":null}'
  end
  local rest = '"usage":{"prompt_tokens":0,"completion_tokens":' .. whole(tokens)
    .. ',"cached_tokens":0},"error":' .. (code and problem or 'null') .. '}'
  local head = '{"reason":' .. cjson.encode(reason) .. ',"choices":'
  close(books, key, record, {
    reason = reason, error = problem, dead = code or '',
    terminal = head .. ends .. ',' .. rest, result = head .. answers .. ',' .. rest,
    tokens = tokens, part = part + 1,
  }, now, keeps)
  hint(tag, {key})
end

-- Ends a job that waits and was cancelled or is past its deadline; says whether it did.
local function end_if_due(books, key, record, now, keeps)
  if is_cancelled(record) then
    end_job(books, key, record, 'cancelled', now, keeps)
  elseif is_past_deadline(record, now) then
    end_job(books, key, record, 'deadline', now, keeps)
  else
    return false
  end
  return true
end

-- A line of the record's history: a claim that did not end the job.
local function log_of(record, what, tokens, now)
  local line = (record.claimed or '0') .. ' ' .. whole(now) .. ' ' .. what .. ' ' .. whole(tokens) .. ' '
    .. (record.worker or '') .. '\n'
  local log = (record.log or '') .. line
  if #log > LOG_BYTES then log = log:sub(-LOG_BYTES):gsub('^[^\n]*\n', '', 1) end
  return log
end

-- Takes a running job from its worker: what it was served is settled, and its history tells. `what`: released, lost.
local function unclaim(books, key, record, what, now)
  local tag = books.tag
  local tokens = last_position(name(tag, 'o', key))
  local served = service_so_far(tag, key, record, tokens)
  settle(books, record, served)
  record.paid, record.charged = whole(number(record.paid) + served), '0'
  record.log = log_of(record, what, tokens, now)
  record.state, record.token, record.worker = 'queued', '', ''
  redis.call('HSET', name(tag, 'j', key), 'state', 'queued', 'token', '', 'worker', '', 'paid', record.paid,
    'charged', '0', 'log', record.log, 'attempts', record.attempts or '0')
  add(books, 'running', -1)
  shared(tag, 'ZREM', name(tag, 'lease'), key)
end

-- Puts a job that was unclaimed back in front of its band.
local function requeue(books, key, record)
  local tag, band = books.tag, band_of(record)
  ring_if_empty(books, band)
  shared(tag, 'RPUSH', name(tag, 'back', band), key)
  redis.call('HSET', name(tag, 'j', key), 'back', '1')
  add(books, 'returned:' .. band, 1)
  if number(record.deadline) > 0 then
    shared(tag, 'ZADD', name(tag, 'due'), record.deadline, key)
  end
end

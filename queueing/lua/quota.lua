-- A tenant's quotas. KEYS[1] is the tenant's tag, such as {t:acme}: these functions touch no lane.
--
-- A rate is a GCRA in the form of a leaky bucket (ITU-T I.371): what was admitted fills it, a limit of n a minute
-- drains n units per microsecond, and one request or token is UNITS units. All of it is whole numbers below 2^53,
-- so nothing is rounded. A bucket holds one minute's worth. What begins on an empty bucket counts as one burst for
-- BURST_US: nothing drains before, all of it afterwards, so that a limit of 50 admits exactly 50 of a burst however
-- slowly that arrives. queueing/leaky_bucket.py and memory_quotas.py say the same in Python.
--
-- A reservation is in flight from `reserve` to `settle` (or `unreserve`), as long as it is kept. One whose lease
-- ended is given back and noted as gone: its job, if there is one after all, is charged in full at its end.

do -- these names are nobody else's

local UNITS = 60000000
local BURST_US = 10000000
local DAY_US = 86400000000
local SOON_US = 1000000        -- a wait for the next of the tenant's jobs to start or end: nobody knows when
local LONGEST_LEASE_MS = 3600000
local GONE_KEPT_MS, GONE_KEPT = 86400000, 10000
local BOOKS_KEPT_MS = 691200000 -- 8 days: no job's deadline is longer
local SWEPT_PER_CALL = 100
local ACCOUNT = {'r_level', 'r_at', 'r_hold', 'r_rate', 't_level', 't_at', 't_hold', 't_rate', 'day', 'spent', 'held',
  'jobs', 'tokens'}

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- A number of the account; what nobody of us can have written counts as none.
local function figure(text)
  local value = tonumber(text)
  return value and value >= 0 and value < 2 ^ 53 and math.floor(value) or 0
end

local function in_ms(microseconds) return math.floor(microseconds / 1000) end

-- The tenant's account: r_* and t_* are the buckets of requests and tokens, `day` and `spent` the daily budget,
-- `held` the tokens reserved in flight, `jobs` and `tokens` those of them that wait. A key of another type is no
-- account: it goes, since every call would fail.
local function open_account(tag, now)
  for key, kind in pairs({rl = 'hash', res = 'hash', inf = 'zset', wait = 'zset', gone = 'zset'}) do
    local found = redis.call('TYPE', name(tag, key)).ok
    if found ~= kind and found ~= 'none' then redis.call('DEL', name(tag, key)) end
  end
  local values, account = redis.call('HMGET', name(tag, 'rl'), unpack(ACCOUNT)), {}
  for at, field in ipairs(ACCOUNT) do account[field] = figure(values[at]) end
  local day = math.floor(now / DAY_US)
  if account.day ~= day then account.day, account.spent = day, 0 end
  return account
end

local function close_account(tag, account)
  local flat = {}
  for _, field in ipairs(ACCOUNT) do
    flat[#flat + 1] = field
    flat[#flat + 1] = whole(account[field])
  end
  redis.call('HSET', name(tag, 'rl'), unpack(flat))
  redis.call('PEXPIRE', name(tag, 'rl'), BOOKS_KEPT_MS)
end

-- -- buckets -----------------------------------------------------------------------------------------

local function drain(account, of, now)
  local at, hold = account[of .. '_at'], account[of .. '_hold']
  if at > now or hold > now + BURST_US then at, hold = now, now end -- the server's clock was set back
  if now >= hold then
    account[of .. '_level'] = math.max(0, account[of .. '_level'] - (now - at) * account[of .. '_rate'])
    at = now
  end
  account[of .. '_at'], account[of .. '_hold'] = at, hold
end

-- From now on the bucket drains at this limit; without one there is nothing in it.
local function set_rate(account, of, limit, now)
  drain(account, of, now)
  account[of .. '_rate'] = limit or 0
  if not limit then account[of .. '_level'] = 0 end
end

-- Fills a bucket that has a limit; a negative amount is given back.
local function fill(account, of, amount, now)
  if account[of .. '_rate'] == 0 then return end
  drain(account, of, now)
  local level = account[of .. '_level']
  if level == 0 and amount > 0 then account[of .. '_at'], account[of .. '_hold'] = now, now + BURST_US end
  account[of .. '_level'] = math.max(0, level + amount * UNITS)
end

-- Microseconds until a bucket, drained up to now, is down to `level`.
local function until_level(account, of, level, now)
  local over = account[of .. '_level'] - level
  if over <= 0 then return 0 end
  return math.max(account[of .. '_at'] + math.ceil(over / account[of .. '_rate']), account[of .. '_hold']) - now
end

-- What is left of a limit now, and the milliseconds until all of it is.
local function left(account, of, limit, now)
  if not limit then return '', '' end
  return whole(math.max(0, math.floor((limit * UNITS - account[of .. '_level']) / UNITS))),
    whole(math.ceil(until_level(account, of, 0, now) / 1000))
end

-- -- reservations ------------------------------------------------------------------------------------

-- A reservation: tokens, those of them for the prompt, state ('q' waits, 'r' runs, 'g' gone), since (ms), nonce.
local function reservation(tag, job)
  local text = redis.call('HGET', name(tag, 'res'), job)
  if not text then return nil end
  local tokens, prompt, state, since, nonce = text:match('^(%d+) (%d+) ([qrg]) (%d+) (%S+)$')
  if not tokens then return nil end
  return {tokens = tonumber(tokens), prompt = tonumber(prompt), state = state, since = tonumber(since), nonce = nonce}
end

local function write_reservation(tag, job, r)
  redis.call('HSET', name(tag, 'res'), job,
    string.format('%.0f %.0f %s %.0f %s', r.tokens, r.prompt, r.state, r.since, r.nonce))
end

-- Counts a reservation as in flight. The longer it has been, the longer it need not be looked at again.
local function hold(tag, account, job, r, state, lease_ms, now)
  local at_ms = in_ms(now)
  r.state = state
  write_reservation(tag, job, r)
  local lease = math.min(math.max(lease_ms, at_ms - r.since), LONGEST_LEASE_MS)
  redis.call('ZADD', name(tag, 'inf'), whole(at_ms + lease), job)
  account.held = account.held + r.tokens
  if state == 'q' then
    redis.call('ZADD', name(tag, 'wait'), whole(r.since), job)
    account.jobs, account.tokens = account.jobs + 1, account.tokens + r.tokens
  end
end

-- Takes a reservation that is in flight out of the account's counts.
local function let_go(tag, account, job, r)
  redis.call('ZREM', name(tag, 'inf'), job)
  account.held = math.max(0, account.held - r.tokens)
  if r.state == 'q' then
    redis.call('ZREM', name(tag, 'wait'), job)
    account.jobs, account.tokens = math.max(0, account.jobs - 1), math.max(0, account.tokens - r.tokens)
  end
end

local function forget(tag, job)
  redis.call('HDEL', name(tag, 'res'), job)
  redis.call('ZREM', name(tag, 'gone'), job)
end

local function give_back(account, r, now)
  fill(account, 'r', -1, now)
  fill(account, 't', -r.tokens, now)
end

-- Ends the reservations whose lease has: what they held is given back.
local function sweep(tag, account, now)
  local at_ms, gone = in_ms(now), name(tag, 'gone')
  local ended = redis.call('ZRANGEBYSCORE', name(tag, 'inf'), '-inf', at_ms, 'LIMIT', 0, SWEPT_PER_CALL)
  for _, job in ipairs(ended) do
    local r = reservation(tag, job)
    if r then
      let_go(tag, account, job, r)
      give_back(account, r, now)
      r.state = 'g'
      write_reservation(tag, job, r)
      redis.call('ZADD', gone, at_ms, job)
    else
      redis.call('ZREM', name(tag, 'inf'), job)
    end
  end
  if #ended == 0 then return end
  local old = redis.call('ZRANGEBYSCORE', gone, '-inf', at_ms - GONE_KEPT_MS, 'LIMIT', 0, SWEPT_PER_CALL)
  local over = redis.call('ZCARD', gone) - GONE_KEPT
  if over > 0 then
    for _, job in ipairs(redis.call('ZRANGE', gone, 0, over - 1)) do old[#old + 1] = job end
  end
  for _, job in ipairs(old) do forget(tag, job) end
end

-- Makes a lapsed reservation again: its job lives after all, so nothing is asked.
local function revive(tag, account, job, r, state, lease_ms, now)
  redis.call('ZREM', name(tag, 'gone'), job)
  fill(account, 'r', 1, now)
  fill(account, 't', r.tokens, now)
  hold(tag, account, job, r, state, lease_ms, now)
end

-- -- admission ---------------------------------------------------------------------------------------

-- The limit that refuses, and the microseconds until it may not, the longest wait if several do; nil: none does.
-- What is larger than a limit passes when nothing else counts against it: it could never pass otherwise.
local function refusal(tag, account, tokens, limits, now)
  local by, longest = nil, 0
  local function refuse(limit, wait)
    if wait > longest then by, longest = limit, wait end
  end
  local in_flight = redis.call('ZCOUNT', name(tag, 'inf'), '(' .. whole(in_ms(now)), '+inf')
  if limits.concurrency and in_flight >= limits.concurrency then refuse('concurrency', SOON_US) end
  if limits.queued_jobs and account.jobs >= limits.queued_jobs then refuse('queued_jobs', SOON_US) end
  if limits.queued_tokens and account.tokens > 0 and account.tokens + tokens > limits.queued_tokens then
    refuse('queued_tokens', SOON_US)
  end
  if limits.daily_tokens then
    local wanted = math.min(tokens, limits.daily_tokens)
    if account.spent + wanted > limits.daily_tokens then
      refuse('daily_tokens', (account.day + 1) * DAY_US - now)
    elseif account.spent + account.held + wanted > limits.daily_tokens then
      refuse('daily_tokens', SOON_US)
    end
  end
  if limits.rpm then refuse('rpm', until_level(account, 'r', (limits.rpm - 1) * UNITS, now)) end
  if limits.tpm then
    refuse('tpm', until_level(account, 't', (limits.tpm - math.min(tokens, limits.tpm)) * UNITS, now))
  end
  return by, longest
end

-- FCALL headway_reserve 1 {t:tenant} <job id> <nonce> <lease ms> <tokens> <prompt tokens>, then the limits or '':
--       <rpm> <tpm> <concurrency> <queued jobs> <queued tokens> <daily tokens>
-- -> ok | again (this job has one) | the limit that refuses; the reservation's nonce; ms to wait;
--    requests left, ms until all are; tokens left, ms until all are
register('headway_reserve', function(keys, args)
  local tag, job, nonce, lease_ms, tokens = keys[1], args[1], args[2], tonumber(args[3]), tonumber(args[4])
  local limits = {rpm = tonumber(args[6]), tpm = tonumber(args[7]), concurrency = tonumber(args[8]),
    queued_jobs = tonumber(args[9]), queued_tokens = tonumber(args[10]), daily_tokens = tonumber(args[11])}
  local now, outcome, wait = now_us(), 'ok', 0
  local account = open_account(tag, now)
  sweep(tag, account, now)
  set_rate(account, 'r', limits.rpm, now)
  set_rate(account, 't', limits.tpm, now)
  local r = reservation(tag, job)
  if r then
    outcome, nonce = 'again', r.nonce
    if r.state == 'g' then
      revive(tag, account, job, r, 'q', lease_ms, now)
    else
      let_go(tag, account, job, r)
      hold(tag, account, job, r, r.state, lease_ms, now)
    end
  else
    local by, longest = refusal(tag, account, tokens, limits, now)
    if by then
      outcome, wait = by, math.ceil(longest / 1000)
    else
      -- The bucket takes no more than it holds: the rest of a larger job is settled at its end.
      r = {tokens = limits.tpm and math.min(tokens, limits.tpm) or tokens, prompt = tonumber(args[5]),
        since = in_ms(now), nonce = nonce}
      fill(account, 'r', 1, now)
      fill(account, 't', r.tokens, now)
      hold(tag, account, job, r, 'q', lease_ms, now)
      for _, key in ipairs({'res', 'inf', 'wait'}) do redis.call('PEXPIRE', name(tag, key), BOOKS_KEPT_MS) end
    end
  end
  close_account(tag, account)
  local requests, requests_ms = left(account, 'r', limits.rpm, now)
  local tokens_left, tokens_ms = left(account, 't', limits.tpm, now)
  return {outcome, nonce, whole(wait), requests, requests_ms, tokens_left, tokens_ms}
end)

-- Calls act(account, now, job, reservation, …) for each group of `size` arguments, `job` and `nonce` in front, that
-- names a reservation we have; returns how many.
local function for_each(tag, args, first, size, act)
  local now, count = now_us(), 0
  local account = open_account(tag, now)
  for at = first, #args, size do
    local r = reservation(tag, args[at])
    if r and r.nonce == args[at + 1] then
      act(account, now, args[at], r, args[at + 2], args[at + 3])
      count = count + 1
    end
  end
  close_account(tag, account)
  return count
end

-- FCALL headway_unreserve 1 {t:tenant}, then <job id> <nonce> for each -> how many were given back
register('headway_unreserve', function(keys, args)
  local tag = keys[1]
  return for_each(tag, args, 1, 2, function(account, now, job, r)
    if r.state ~= 'g' then
      let_go(tag, account, job, r)
      give_back(account, r, now)
    end
    forget(tag, job)
  end)
end, {'allow-oom'})

-- FCALL headway_settle 1 {t:tenant}, then <job id> <nonce> <prompt tokens> <completion tokens> for each
-- -> how many were settled by this call: a second one finds nothing
register('headway_settle', function(keys, args)
  local tag = keys[1]
  return for_each(tag, args, 1, 4, function(account, now, job, r, prompt, completion)
    local used = tonumber(prompt) + tonumber(completion)
    -- Without a worker's word nobody counted the prompt; it was computed if anything was published.
    if tonumber(prompt) == 0 and used > 0 then used = used + r.prompt end
    if r.state == 'g' then
      fill(account, 'r', 1, now)
      fill(account, 't', used, now)
    else
      let_go(tag, account, job, r)
      fill(account, 't', used - r.tokens, now)
    end
    account.spent = account.spent + used
    forget(tag, job)
  end)
end, {'allow-oom'})

-- FCALL headway_keep 1 {t:tenant} <lease ms>, then <job id> <nonce> <q or r> for each: this job lives, and waits or
-- runs -> how many reservations go on; lapsed ones are made again
register('headway_keep', function(keys, args)
  local tag, lease_ms = keys[1], tonumber(args[1])
  return for_each(tag, args, 2, 3, function(account, now, job, r, state)
    if r.state == 'g' then
      revive(tag, account, job, r, state, lease_ms, now)
    else
      let_go(tag, account, job, r)
      hold(tag, account, job, r, state, lease_ms, now)
    end
  end)
end, {'allow-oom'})

-- FCALL headway_reservations 1 {t:tenant} <ms> <limit>: those whose lease ends within so many ms, the next first;
-- '' instead: those that wait, the oldest first -> how many are in flight, then <job id> <nonce> for each
register('headway_reservations', function(keys, args)
  local tag, inf = keys[1], name(keys[1], 'inf')
  local jobs
  if args[1] == '' then
    jobs = redis.call('ZRANGE', name(tag, 'wait'), 0, tonumber(args[2]) - 1)
  else
    jobs = redis.call('ZRANGEBYSCORE', inf, '-inf', in_ms(now_us()) + tonumber(args[1]), 'LIMIT', 0, args[2])
  end
  local found = {whole(redis.call('ZCARD', inf))}
  for _, job in ipairs(jobs) do
    local r = reservation(tag, job)
    if r then
      found[#found + 1] = job
      found[#found + 1] = r.nonce
    end
  end
  return found
end, {'no-writes'})

-- FCALL headway_account 1 {t:tenant} <rpm or ''> <tpm or ''>
-- -> in flight, waiting jobs, waiting tokens, tokens held, tokens spent today; left as `reserve` says it
register('headway_account', function(keys, args)
  local tag, now = keys[1], now_us()
  local account = open_account(tag, now)
  sweep(tag, account, now)
  local rpm, tpm = tonumber(args[1]), tonumber(args[2])
  set_rate(account, 'r', rpm, now)
  set_rate(account, 't', tpm, now)
  close_account(tag, account)
  local requests, requests_ms = left(account, 'r', rpm, now)
  local tokens, tokens_ms = left(account, 't', tpm, now)
  return {whole(redis.call('ZCARD', name(tag, 'inf'))), whole(account.jobs), whole(account.tokens),
    whole(account.held), whole(account.spent), requests, requests_ms, tokens, tokens_ms}
end, {'allow-oom'})

end

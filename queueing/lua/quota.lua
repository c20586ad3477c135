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
local ACCOUNT = {pattern = '^' .. ('(%d+) '):rep(14), format = ('%d '):rep(14)}

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function digits(value) return ('%d'):format(value) end
local function in_ms(microseconds) return math.floor(microseconds / 1000) end

-- One command on one of the tenant's keys. A key that somebody filled with another type would make every call fail,
-- and in the middle: it goes, and the command is repeated.
local function on(tag, command, key, ...)
  local reply = redis.pcall(command, name(tag, key), ...)
  if type(reply) == 'table' and reply.err then
    if reply.err:find('WRONGTYPE', 1, true) then redis.call('DEL', name(tag, key)) end
    return redis.call(command, name(tag, key), ...)
  end
  return reply
end

-- The tenant's account: the buckets of requests and tokens; `day` and `spent`, the daily budget; `held`, the tokens
-- reserved in flight; `jobs` and `tokens`, those of them that wait; `dated`, when the keys' lifetimes were last set.
-- One string, which is read and written faster than a hash. What none of us can have written is an empty account.
local function open_account(tag, now)
  local figures = {(on(tag, 'GET', 'rl') or ''):match(ACCOUNT.pattern)}
  for at = 1, 14 do
    local value = tonumber(figures[at])
    figures[at] = value and value < 2 ^ 53 and value or 0
  end
  local day, spent = figures[9], figures[10]
  if day ~= math.floor(now / DAY_US) then day, spent = math.floor(now / DAY_US), 0 end
  return {
    requests = {level = figures[1], at = figures[2], hold = figures[3], rate = figures[4]},
    tokens = {level = figures[5], at = figures[6], hold = figures[7], rate = figures[8]},
    day = day, spent = spent, held = figures[11], waiting_jobs = figures[12], waiting_tokens = figures[13],
    dated = figures[14],
  }
end

local function close_account(tag, account)
  if account.dated ~= account.day then -- once a day is enough, and costs less than always
    account.dated = account.day
    for _, key in ipairs({'res', 'inf', 'wait', 'gone'}) do redis.call('PEXPIRE', name(tag, key), BOOKS_KEPT_MS) end
  end
  local r, t = account.requests, account.tokens
  local text = ACCOUNT.format:format(r.level, r.at, r.hold, r.rate, t.level, t.at, t.hold, t.rate, account.day,
    account.spent, account.held, account.waiting_jobs, account.waiting_tokens, account.dated)
  on(tag, 'SET', 'rl', text, 'PX', BOOKS_KEPT_MS)
end

-- -- buckets -----------------------------------------------------------------------------------------

local function drain(bucket, now)
  if bucket.at > now or bucket.hold > now + BURST_US then bucket.at, bucket.hold = now, now end -- a clock set back
  if now >= bucket.hold then
    bucket.level = math.max(0, bucket.level - (now - bucket.at) * bucket.rate)
    bucket.at = now
  end
end

-- From now on the bucket drains at this limit; without one there is nothing in it.
local function set_rate(bucket, limit, now)
  drain(bucket, now)
  bucket.rate = limit or 0
  if not limit then bucket.level = 0 end
end

-- Fills a bucket that has a limit; a negative amount is given back.
local function fill(bucket, amount, now)
  if bucket.rate == 0 then return end
  drain(bucket, now)
  if bucket.level == 0 and amount > 0 then bucket.at, bucket.hold = now, now + BURST_US end
  bucket.level = math.max(0, bucket.level + amount * UNITS)
end

-- Microseconds until a bucket, drained up to now, is down to `level`.
local function until_level(bucket, level, now)
  local over = bucket.level - level
  if over <= 0 then return 0 end
  return math.max(bucket.at + math.ceil(over / bucket.rate), bucket.hold) - now
end

-- What is left of a limit now, and the milliseconds until all of it is.
local function left(bucket, limit, now)
  if not limit then return '', '' end
  return digits(math.max(0, math.floor((limit * UNITS - bucket.level) / UNITS))),
    digits(math.ceil(until_level(bucket, 0, now) / 1000))
end

-- -- reservations ------------------------------------------------------------------------------------

-- A reservation: tokens, those of them for the prompt, state ('q' waits, 'r' runs, 'g' gone), since (ms), nonce, and
-- the tokens that fill the bucket, which takes no more than it holds: the rest of a larger job is settled at its end.
local function reservation(tag, job)
  local text = on(tag, 'HGET', 'res', job)
  if not text then return nil end
  local tokens, prompt, state, since, nonce, filled = text:match('^(%d+) (%d+) ([qrg]) (%d+) (%S+) ?(%d*)$')
  if not tokens then return nil end
  return {tokens = tonumber(tokens), prompt = tonumber(prompt), state = state, since = tonumber(since), nonce = nonce,
    filled = tonumber(filled) or tonumber(tokens)}
end

local function write_reservation(tag, job, r)
  on(tag, 'HSET', 'res', job,
    string.format('%d %d %s %d %s %d', r.tokens, r.prompt, r.state, r.since, r.nonce, r.filled))
end

-- Counts a reservation as in flight. The longer it has been, the longer it need not be looked at again.
local function hold(tag, account, job, r, state, lease_ms, now)
  local at_ms = in_ms(now)
  r.state = state
  write_reservation(tag, job, r)
  local lease = math.min(math.max(lease_ms, at_ms - r.since), LONGEST_LEASE_MS)
  on(tag, 'ZADD', 'inf', digits(at_ms + lease), job)
  account.held = account.held + r.tokens
  if state == 'q' then
    on(tag, 'ZADD', 'wait', digits(r.since), job)
    account.waiting_jobs, account.waiting_tokens = account.waiting_jobs + 1, account.waiting_tokens + r.tokens
  end
end

-- Takes a reservation that is in flight out of the account's counts.
local function let_go(tag, account, job, r)
  on(tag, 'ZREM', 'inf', job)
  account.held = math.max(0, account.held - r.tokens)
  if r.state == 'q' then
    on(tag, 'ZREM', 'wait', job)
    account.waiting_jobs = math.max(0, account.waiting_jobs - 1)
    account.waiting_tokens = math.max(0, account.waiting_tokens - r.tokens)
  end
end

local function forget(tag, job, state)
  on(tag, 'HDEL', 'res', job)
  if state == 'g' then on(tag, 'ZREM', 'gone', job) end
end

local function give_back(account, r, now)
  fill(account.requests, -1, now)
  fill(account.tokens, -r.filled, now)
end

-- Ends the reservations whose lease has: what they held is given back.
local function sweep(tag, account, now)
  local at_ms = in_ms(now)
  local ended = on(tag, 'ZRANGEBYSCORE', 'inf', '-inf', digits(at_ms), 'LIMIT', 0, SWEPT_PER_CALL)
  for _, job in ipairs(ended) do
    local r = reservation(tag, job)
    if r then
      let_go(tag, account, job, r)
      give_back(account, r, now)
      r.state = 'g'
      write_reservation(tag, job, r)
      on(tag, 'ZADD', 'gone', digits(at_ms), job)
    else
      on(tag, 'ZREM', 'inf', job)
    end
  end
  if #ended == 0 then return end
  local old = on(tag, 'ZRANGEBYSCORE', 'gone', '-inf', digits(at_ms - GONE_KEPT_MS), 'LIMIT', 0, SWEPT_PER_CALL)
  local over = on(tag, 'ZCARD', 'gone') - GONE_KEPT
  if over > 0 then
    for _, job in ipairs(on(tag, 'ZRANGE', 'gone', 0, over - 1)) do old[#old + 1] = job end
  end
  for _, job in ipairs(old) do forget(tag, job, 'g') end
  -- These may be new since the account was dated, and the tenant may never call again.
  for _, key in ipairs({'res', 'gone'}) do redis.call('PEXPIRE', name(tag, key), BOOKS_KEPT_MS) end
end

-- Makes a lapsed reservation again: its job lives after all, so nothing is asked.
local function revive(tag, account, job, r, state, lease_ms, now)
  on(tag, 'ZREM', 'gone', job)
  fill(account.requests, 1, now)
  fill(account.tokens, r.filled, now)
  hold(tag, account, job, r, state, lease_ms, now)
end

-- -- admission ---------------------------------------------------------------------------------------

-- The limit that refuses, and the microseconds until it may not, the longest wait if several do; nil: none does.
-- What is larger than a limit of tokens in the queue or per minute passes when nothing else counts against it: it could
-- never pass otherwise. A day's budget is never overdrawn by what a job said it may take.
local function refusal(tag, account, tokens, limits, now)
  local by, longest = nil, 0
  local function refuse(limit, wait)
    if wait > longest then by, longest = limit, wait end
  end
  if limits.concurrency
    and on(tag, 'ZCOUNT', 'inf', '(' .. digits(in_ms(now)), '+inf') >= limits.concurrency then
    refuse('concurrency', SOON_US)
  end
  if limits.queued_jobs and account.waiting_jobs >= limits.queued_jobs then refuse('queued_jobs', SOON_US) end
  if limits.queued_tokens and account.waiting_tokens > 0
    and account.waiting_tokens + tokens > limits.queued_tokens then
    refuse('queued_tokens', SOON_US)
  end
  if limits.daily_tokens then
    if account.spent + tokens > limits.daily_tokens then
      refuse('daily_tokens', (account.day + 1) * DAY_US - now)
    elseif account.spent + account.held + tokens > limits.daily_tokens then
      refuse('daily_tokens', SOON_US)
    end
  end
  if limits.rpm then refuse('rpm', until_level(account.requests, (limits.rpm - 1) * UNITS, now)) end
  if limits.tpm then
    refuse('tpm', until_level(account.tokens, (limits.tpm - math.min(tokens, limits.tpm)) * UNITS, now))
  end
  return by, longest
end

-- FCALL headway_reserve 1 {t:tenant} <job id> <nonce> <lease ms> <tokens> <prompt tokens>, then the limits or '':
--       <rpm> <tpm> <concurrency> <queued jobs> <queued tokens> <daily tokens>
-- -> ok | again (this job has one) | the limit that refuses; the reservation's nonce; ms to wait;
--    requests left, ms until all are; tokens left, ms until all are; tokens of the day that nothing has or holds
register('headway_reserve', function(keys, args)
  local tag, job, nonce, lease_ms, tokens = keys[1], args[1], args[2], tonumber(args[3]), tonumber(args[4])
  local limits = {rpm = tonumber(args[6]), tpm = tonumber(args[7]), concurrency = tonumber(args[8]),
    queued_jobs = tonumber(args[9]), queued_tokens = tonumber(args[10]), daily_tokens = tonumber(args[11])}
  local now, outcome, wait = now_us(), 'ok', 0
  local account = open_account(tag, now)
  sweep(tag, account, now)
  set_rate(account.requests, limits.rpm, now)
  set_rate(account.tokens, limits.tpm, now)
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
      r = {tokens = tokens, prompt = tonumber(args[5]), since = in_ms(now), nonce = nonce,
        filled = limits.tpm and math.min(tokens, limits.tpm) or tokens}
      fill(account.requests, 1, now)
      fill(account.tokens, r.filled, now)
      hold(tag, account, job, r, 'q', lease_ms, now)
    end
  end
  close_account(tag, account)
  local requests, requests_ms = left(account.requests, limits.rpm, now)
  local tokens_left, tokens_ms = left(account.tokens, limits.tpm, now)
  local today = limits.daily_tokens and digits(math.max(0, limits.daily_tokens - account.spent - account.held)) or ''
  return {outcome, nonce, digits(wait), requests, requests_ms, tokens_left, tokens_ms, today}
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
    forget(tag, job, r.state)
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
      fill(account.requests, 1, now)
      fill(account.tokens, used, now)
    else
      let_go(tag, account, job, r)
      fill(account.tokens, used - r.filled, now)
    end
    account.spent = account.spent + used
    forget(tag, job, r.state)
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

-- FCALL headway_reservations 1 {t:tenant} <ms> <limit> [<skip>]: those whose lease ends within so many ms, the next
-- first; '' instead: those that wait, the oldest first; 'gone': those that lapsed, the latest first; without the first
-- <skip> of them -> how many are in flight, then <job id> <nonce> for each
register('headway_reservations', function(keys, args)
  local tag, limit, skip, jobs = keys[1], tonumber(args[2]), tonumber(args[3] or '0'), nil
  if args[1] == '' then
    jobs = on(tag, 'ZRANGE', 'wait', skip, skip + limit - 1)
  elseif args[1] == 'gone' then
    jobs = on(tag, 'ZRANGE', 'gone', skip, skip + limit - 1, 'REV')
  else
    local until_ms = digits(in_ms(now_us()) + tonumber(args[1]))
    jobs = on(tag, 'ZRANGEBYSCORE', 'inf', '-inf', until_ms, 'LIMIT', skip, limit)
  end
  local found = {digits(on(tag, 'ZCARD', 'inf'))}
  for _, job in ipairs(jobs) do
    local r = reservation(tag, job)
    if r then
      found[#found + 1] = job
      found[#found + 1] = r.nonce
    end
  end
  return found
end, {'allow-oom'})

-- FCALL headway_account 1 {t:tenant} <rpm or ''> <tpm or ''>
-- -> in flight, waiting jobs, waiting tokens, tokens held, tokens spent today; left as `reserve` says it
register('headway_account', function(keys, args)
  local tag, now = keys[1], now_us()
  local account = open_account(tag, now)
  sweep(tag, account, now)
  local rpm, tpm = tonumber(args[1]), tonumber(args[2])
  set_rate(account.requests, rpm, now)
  set_rate(account.tokens, tpm, now)
  close_account(tag, account)
  local requests, requests_ms = left(account.requests, rpm, now)
  local tokens, tokens_ms = left(account.tokens, tpm, now)
  return {digits(on(tag, 'ZCARD', 'inf')), digits(account.waiting_jobs), digits(account.waiting_tokens),
    digits(account.held), digits(account.spent), requests, requests_ms, tokens, tokens_ms}
end, {'allow-oom'})

end

-- Part 12: reservations. One is in flight from `reserve` to `settle` (or `unreserve`), as long as it is kept. One whose
-- lease ended is given back and noted as gone: its job, if there is one after all, is charged in full at its end.

local LONGEST_LEASE_MS = 3600000
local GONE_KEPT_MS, GONE_KEPT = 86400000, 10000
local SWEPT_PER_CALL = 100

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

-- Counts again what is in flight. What only `inf` names has no reservation and goes; what only `res` names ends now,
-- and is made again if its job lives.
local function recount(tag, account, now)
  local at_ms, state_of = digits(in_ms(now)), {}
  account.held, account.waiting_jobs, account.waiting_tokens = 0, 0, 0
  for _, job in ipairs(on(tag, 'HKEYS', 'res')) do
    local r = reservation(tag, job)
    state_of[job] = r and r.state
    if not r then
      on(tag, 'HDEL', 'res', job)
    elseif r.state == 'g' then
      on(tag, 'ZADD', 'gone', 'NX', at_ms, job)
    else
      on(tag, 'ZADD', 'inf', 'NX', at_ms, job)
      account.held = account.held + r.tokens
    end
    if r and r.state == 'q' then
      on(tag, 'ZADD', 'wait', 'NX', digits(r.since), job)
      account.waiting_jobs, account.waiting_tokens = account.waiting_jobs + 1, account.waiting_tokens + r.tokens
    end
  end
  for key, states in pairs({inf = '[qr]', wait = 'q', gone = 'g'}) do
    for _, job in ipairs(on(tag, 'ZRANGE', key, 0, -1)) do
      if not (state_of[job] or ''):find(states) then on(tag, 'ZREM', key, job) end
    end
  end
  account.dated = 0 -- what was deleted has no lifetime
end

-- Recounts an account one of whose keys somebody has deleted; whether it had to.
local function check_account(tag, account, now)
  local in_flight, kept = on(tag, 'ZCARD', 'inf'), on(tag, 'HLEN', 'res')
  local is_new = account.dated == 0 and kept > 0
  local is_off = is_new or kept ~= in_flight + on(tag, 'ZCARD', 'gone') or in_flight == 0 and account.held > 0
    or account.waiting_jobs ~= on(tag, 'ZCARD', 'wait')
  if is_off then recount(tag, account, now) end
  return is_off
end

-- Ends the reservations whose lease has: what they held is given back.
local function sweep(tag, account, now)
  local at_ms = in_ms(now)
  local ended = on(tag, 'ZRANGEBYSCORE', 'inf', '-inf', digits(at_ms), 'LIMIT', 0, SWEPT_PER_CALL)
  for _, job in ipairs(ended) do
    local r = reservation(tag, job)
    if r and r.state ~= 'g' then
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
